use crate::trace::Var;

/// Moving and adding up the rows of each sample by ids, written with other ops.
impl Var {
    /// Returns the rows that ids name: `[..., n, e]` and i32 `[..., k]` to `[..., k, e]` (NumPy's
    /// `take_along_axis` and PyTorch's `index_select` along the axis before the last, by each sample's own
    /// ids). An id outside of the axis reads the last row. [`Var::gather`] moves single elements.
    ///
    /// The gradient of a row is the sum over all places that it went to, which takes n x k x e
    /// multiplications.
    ///
    /// Errors: the axes before n and before k differ, or ids are not i32.
    #[doc(alias("index_select", "take_along_axis"))]
    pub fn gather_rows(&self, ids: &Var) -> Var {
        let axes = (self.dims().split_last_chunk::<2>(), ids.dims().split_last());
        let (Some((rest, &[_, width])), Some((&k, rows))) = axes else {
            let problem = format!("{} has no rows for {}", self.ty(), ids.ty());
            self.tape().fail_here("gather_rows", problem);
            return self.clone();
        };
        if rest != rows || self.ty().lead != ids.ty().lead {
            let problem = format!("{} does not name rows of {}", ids.ty(), self.ty());
            self.tape().fail_here("gather_rows", problem);
            return self.clone();
        }
        let each =
            ids.reshape(&[rest, &[1, k]].concat()).expand(self.ty().lead, &[rest, &[width, k]].concat());
        self.swapped().gather(&each).swapped()
    }

    /// Returns the sum of the rows that have each id: `[..., k, e]` and i32 `[..., k]` to `[..., n, e]`
    /// (TensorFlow's `unsorted_segment_sum`; PyTorch's `scatter_add` and `index_add` along the axis before
    /// the last). Segments without a row are zeros, and a row with an id outside of 0..n is left out.
    ///
    /// It is a product with one-hot ids, in f32: n x k x e multiplications, added up in the fixed order.
    ///
    /// Errors: the axes before k differ, or ids are not i32.
    #[doc(alias("unsorted_segment_sum", "scatter_add", "index_add", "scatter"))]
    pub fn segment_sum(&self, ids: &Var, n: usize) -> Var {
        let fits = self.dims().split_last().is_some_and(|(_, rows)| rows == ids.dims())
            && !ids.dims().is_empty()
            && self.ty().lead == ids.ty().lead;
        if !fits {
            let problem = format!("{} does not name segments of the rows of {}", ids.ty(), self.ty());
            self.tape().fail_here("segment_sum", problem);
            return self.clone();
        }
        let is_in = ids.one_hot(n).swapped();
        self.tape().in_f32(|| is_in.matmul(self))
    }

    /// Returns the value with its last two axes exchanged.
    fn swapped(&self) -> Var {
        let rank = self.dims().len();
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permute(&axes)
    }
}

#[cfg(test)]
mod tests;
