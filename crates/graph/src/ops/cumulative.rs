use super::{Pad, Slice};
use crate::trace::Var;

/// Running sums, written with other ops.
impl Var {
    /// Returns the sum of each element and of all before it along an axis (PyTorch's `cumsum`). Negative axes
    /// count from the end; axis 0 of a value with samples is the batch, along which there is no such sum.
    ///
    /// Sums of 2, 4, 8, ... elements are added up (Hillis and Steele 1986), so that the rounding error
    /// grows with the logarithm of the length.
    pub fn cumulative_sum(&self, axis: isize) -> Var {
        let Some(axis) = self.axis("cumulative_sum", axis) else { return self.clone() };
        let dims = self.dims();
        let (mut sums, mut distance) = (self.clone(), 1);
        while distance < dims[axis] {
            let (start, mut before, mut kept) = (vec![0; dims.len()], vec![0; dims.len()], dims.to_vec());
            (before[axis], kept[axis]) = (distance, dims[axis] - distance);
            let shifted = sums.apply(Slice { start, dims: kept }).apply(Pad { before, dims: dims.to_vec() });
            sums = sums + shifted;
            distance *= 2;
        }
        sums
    }

    /// Returns the largest of each element and of all before it along an axis (the values of PyTorch's
    /// `cummax`). Equal elements share the gradient. Negative axes count from the end; axis 0 of a value with
    /// samples is the batch, along which there is no such maximum.
    #[doc(alias = "cummax")]
    pub fn cumulative_max(&self, axis: isize) -> Var {
        let Some(at) = self.axis("cumulative_max", axis) else { return self.clone() };
        let (mut most, mut distance, length) = (self.clone(), 1, self.dims()[at]);
        while distance < length {
            let before = most.slice(axis, 0..length - distance);
            let reached = most.slice(axis, distance..length).maximum(&before);
            most = most.slice(axis, 0..distance).concat(&[&reached], axis);
            distance *= 2;
        }
        most
    }

    /// Returns the smallest of each element and of all before it along an axis, as [`Var::cumulative_max`]
    /// does the largest (the values of PyTorch's `cummin`).
    #[doc(alias = "cummin")]
    pub fn cumulative_min(&self, axis: isize) -> Var {
        -(-self).cumulative_max(axis)
    }
}
