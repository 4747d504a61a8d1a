//! Sequences as lists of their steps.

use unisono_graph::Var;

/// The steps of a sequence: `[B, T, ...]` to T times `[B, ...]`.
///
/// Cut in halves, and these again: the gradient of the sequence is then put together in log T passes instead of T.
pub fn unstack(x: &Var) -> Vec<Var> {
    let steps = x.dims().first().copied().unwrap_or(0);
    if steps < 2 {
        return vec![x.reshape(x.dims().get(1..).unwrap_or_default())];
    }
    let half = steps.next_power_of_two() / 2;
    let axis = x.ty().rank() as isize - x.dims().len() as isize;
    [0..half, half..steps].into_iter().flat_map(|range| unstack(&x.slice(axis, range))).collect()
}

/// Steps as a sequence: T times `[B, ...]` to `[B, T, ...]`; `None` of none.
pub fn stack(steps: &[Var]) -> Option<Var> {
    let axis = -(steps.first()?.dims().len() as isize) - 1;
    join(steps.iter().map(|v| v.reshape(&[&[1], v.dims()].concat())).collect(), axis)
}

/// Parts one behind the other along an axis, counted from the last: joined in pairs, and these again.
pub(super) fn join(mut parts: Vec<Var>, axis: isize) -> Option<Var> {
    while parts.len() > 1 {
        let two = |pair: &[Var]| match pair {
            [a, b] => a.concat(&[b], axis),
            _ => pair[0].clone(),
        };
        parts = parts.chunks(2).map(two).collect();
    }
    parts.pop()
}
