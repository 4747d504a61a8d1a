//! The largest elements of a row, written with other ops.

use super::{Eq, Iota};
use crate::trace::Var;

/// The most elements that [`Var::top_k`] looks for. Each is traced on its own, so that many more would not
/// end.
const MOST: usize = 1024;

impl Var {
    /// Returns the k largest elements of the last axis, the largest first, and their indices as f32:
    /// `[..., n]` to `[..., k]` twice (PyTorch's `topk`). Indices are exact below 2^24.
    ///
    /// Among equal elements the one with the smaller index comes first. Minus infinity counts as the least
    /// finite number. What comes of a row that holds a NaN is not specified, as for [`Var::max`]. The
    /// gradient of a value goes to the element that it is, and to no other; indices have none.
    ///
    /// Each value takes three reductions of a row, so that k is meant to be small.
    ///
    /// Errors: there is no last axis, or k is 0, above the axis's length or above 1,024.
    pub fn top_k(&self, k: usize) -> (Var, Var) {
        let n = self.dims().last().copied().unwrap_or_default();
        if k == 0 || k > n.min(MOST) {
            let problem = format!("k is {k}, and must be from 1 to {} for {}", n.min(MOST), self.ty());
            self.tape().fail_here("top_k", problem);
            return (self.clone(), self.clone());
        }
        let tape = self.tape();
        let [zero, one, least] = [0.0, 1.0, f32::MIN].map(|x| tape.constant(x));
        let iota = tape.apply(Iota { dims: vec![n], axis: 0 }, &[]).to_f32();
        // What is looked at, which has no gradient of its own.
        let seen = self.detach().maximum(&least);
        let mut is_left: Option<Var> = None;
        let (mut values, mut indices) = (Vec::with_capacity(k), Vec::with_capacity(k));
        for _ in 0..k {
            let left = is_left.as_ref().map_or_else(|| seen.clone(), |is_left| is_left.select(&seen, &least));
            let reached = left.zip(Eq, &[&left.max_keep(&[-1])]);
            let reached = is_left.as_ref().map_or_else(|| reached.clone(), |is_left| &reached * is_left);
            // The first index that reaches the maximum: the largest of (n - index).
            let index = n as f32 - (reached * (n as f32 - &iota)).max_keep(&[-1]);
            let is_it = iota.zip(Eq, &[&index]);
            values.push(is_it.select(self, &zero).sum_keep(&[-1]));
            let is_other = is_it.select(&zero, &one);
            is_left = Some(is_left.map_or_else(|| is_other.clone(), |is_left| is_left * &is_other));
            indices.push(index);
        }
        let join = |parts: &[Var]| match parts.split_first() {
            Some((first, [])) => first.clone(),
            Some((first, others)) => first.concat(&others.iter().collect::<Vec<_>>(), -1),
            None => zero.clone(),
        };
        (join(&values), join(&indices))
    }
}
