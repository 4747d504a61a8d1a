use super::{Eq, Iota};
use crate::trace::Var;
use crate::values::{DType, Lead};

/// The most elements of a row that is sorted.
const MOST: usize = 8192;

/// Sorting, written with other ops.
impl Var {
    /// Returns the elements of the last axis from the smallest to the largest, and where each came from as
    /// i32: `[..., n]` to `[..., n]` twice (PyTorch's `sort`, stable). `-(-x).sort()` is from the largest on.
    ///
    /// Each element is compared with all others of its row, so that it takes n^2 comparisons: it is meant for
    /// rows of a few hundred. [`Var::top_k`] is faster for a few elements. The gradient of a value goes to
    /// the element that it is; indices have none. What comes of a row that holds a NaN is not specified.
    ///
    /// Errors: there is no last axis, the value is not of f32, or a row has more than 8,192 elements.
    pub fn sort(&self) -> (Var, Var) {
        let Some(rank) = self.rank_of_each() else { return (self.clone(), self.clone()) };
        let (n, lead) = (self.dims()[self.dims().len() - 1], self.ty().lead);
        let wide = [self.dims(), &[n]].concat();
        // [..., place, element]: whether the element belongs there.
        let last = wide.len() - 1;
        let place = self.tape().apply(Iota { dims: wide.clone(), axis: last - 1 }, &[]).to_f32();
        let row = |x: &Var| {
            let mut dims = x.dims().to_vec();
            dims.insert(dims.len() - 1, 1);
            x.reshape(&dims).expand(lead, &wide)
        };
        let is_it = place.expand(lead, &wide).zip(Eq, &[&row(&rank)]);
        let zero = self.tape().constant(0.0);
        let values = is_it.select(&row(self), &zero).sum(&[-1]);
        let own = self.tape().apply(Iota { dims: wide.clone(), axis: last }, &[]).to_f32();
        (values, (is_it * own).sum(&[-1]).to_i32())
    }

    /// Returns the indices that would sort the last axis, from the smallest element to the largest, as i32
    /// (NumPy's and PyTorch's `argsort`, stable); see [`Var::sort`].
    pub fn argsort(&self) -> Var {
        self.sort().1
    }

    /// Returns the place that each element of the last axis has among those of its row, as f32.
    fn rank_of_each(&self) -> Option<Var> {
        let n = self.dims().last().copied().unwrap_or_default();
        if n == 0 || n > MOST || self.ty().dtype != DType::F32 || self.ty().lead == Lead::Shard {
            let problem = format!("{} has no rows of f32 of 1 to {MOST} elements", self.ty());
            self.tape().fail_here("sort", problem);
            return None;
        }
        let (tape, x) = (self.tape(), self.detach());
        let wide = [self.dims(), &[n]].concat();
        let place = |axis| tape.apply(Iota { dims: vec![n, n], axis }, &[]);
        let is_before = place(0).to_f32().greater(&place(1).to_f32());
        // [..., element, other]: whether the other one comes before it.
        let mut dims = self.dims().to_vec();
        dims.insert(dims.len() - 1, 1);
        let own = x.add_axis().expand(self.ty().lead, &wide);
        let other = x.reshape(&dims).expand(self.ty().lead, &wide);
        let comes_before = own.greater(&other) + own.zip(Eq, &[&other]) * is_before;
        Some(comes_before.sum(&[-1]))
    }
}
