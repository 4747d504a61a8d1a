use super::{Pad, Slice};
use crate::trace::Var;

/// Running sums, written with other ops.
impl Var {
    /// Returns the sum of each element and of all before it along an axis (PyTorch's `cumsum`). Negative axes
    /// count from the end; axis 0 of a value with samples is the batch, along which there is no such sum.
    ///
    /// Sums of 2, 4, 8, ... elements are added up (Hillis and Steele 1986), so that the rounding error grows with
    /// the logarithm of the length.
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
}
