//! Sequences as lists of their steps.

use unisono_graph::Var;

/// Cuts a sequence `[B, T, ...]` into its T steps `[B, ...]`.
pub fn unstack(x: &Var) -> Vec<Var> {
    unstack_steps(x, x.dims().len().saturating_sub(1))
}

/// Cuts sequences `[B, ..., T, features]` into their T steps `[B, ..., features]`. There are `features` axes
/// behind that of the steps.
pub(super) fn unstack_steps(x: &Var, features: usize) -> Vec<Var> {
    let Some(place) = x.dims().len().checked_sub(features + 1) else { return vec![x.clone()] };
    let axis = x.ty().rank() as isize - features as isize - 1;
    let mut dims = x.dims().to_vec();
    let steps = dims.remove(place);
    (0..steps).map(|step| x.slice(axis, step..step + 1).reshape(&dims)).collect()
}

/// Joins T steps `[B, ..., features]` into sequences `[B, ..., T, features]`. Returns `None` if there are no
/// steps.
pub(in crate::model::layers) fn stack_steps(steps: &[Var]) -> Option<Var> {
    stack_at(steps, steps.first()?.dims().len().checked_sub(1)?)
}

/// Joins T steps `[B, ...]` into a sequence `[B, T, ...]`. Returns `None` if there are no steps.
pub fn stack(steps: &[Var]) -> Option<Var> {
    stack_at(steps, 0)
}

/// Joins steps along a new axis in front of that at a place.
fn stack_at(steps: &[Var], place: usize) -> Option<Var> {
    let (before, behind) = steps.first()?.dims().split_at(place);
    let dims = [before, &[1], behind].concat();
    let steps: Vec<Var> = steps.iter().map(|step| step.reshape(&dims)).collect();
    join(&steps, -(behind.len() as isize) - 1)
}

/// Concatenates parts along an axis, which is counted from the last. Returns `None` if there are no parts.
pub(in crate::model::layers) fn join(parts: &[Var], axis: isize) -> Option<Var> {
    let (first, others) = parts.split_first()?;
    Some(first.concat(&others.iter().collect::<Vec<_>>(), axis))
}
