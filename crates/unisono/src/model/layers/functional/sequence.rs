//! Sequences as lists of their steps.

use unisono_graph::Var;

/// The steps of a sequence: `[B, T, ...]` to T times `[B, ...]`.
pub fn unstack(x: &Var) -> Vec<Var> {
    let Some((&steps, dims)) = x.dims().split_first() else { return vec![x.clone()] };
    let axis = x.ty().rank() as isize - x.dims().len() as isize;
    (0..steps).map(|step| x.slice(axis, step..step + 1).reshape(dims)).collect()
}

/// Steps as a sequence: T times `[B, ...]` to `[B, T, ...]`; `None` of none.
pub fn stack(steps: &[Var]) -> Option<Var> {
    let axis = -(steps.first()?.dims().len() as isize) - 1;
    join(&steps.iter().map(|v| v.reshape(&[&[1], v.dims()].concat())).collect::<Vec<_>>(), axis)
}

/// Parts one behind the other along an axis, counted from the last; `None` of none.
pub(in crate::model::layers) fn join(parts: &[Var], axis: isize) -> Option<Var> {
    let (first, others) = parts.split_first()?;
    Some(first.concat(&others.iter().collect::<Vec<_>>(), axis))
}
