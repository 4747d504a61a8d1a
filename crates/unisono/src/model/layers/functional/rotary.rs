//! What attention needs beside its scores: positions as rotations, and heads that share keys and values.

use unisono_graph::ops::Iota;
use unisono_graph::{Tape, Var};

use super::sequence::join;

/// Rotates queries or keys by their positions (Su et al. 2021; the halves as in Llama): feature i of the
/// first half and feature i of the second half are a pair, which is rotated by the angle t base^(-2 i / d)
/// at position t. Products of two rotated vectors depend on the distance of their positions only.
///
/// Shapes: `[B, ..., T, d]` to the same. The base of the paper is 10,000.
///
/// It is meant for up to 12,000 positions, for which the library's sine and cosine hold: see
/// [`Sin`](unisono_graph::ops::Sin). An angle is a product in f32, so it is off by up to 1e-7 of its
/// position.
///
/// Errors: x has fewer than two axes, or d is odd.
pub fn rotary(x: &Var, base: f32) -> Var {
    rotary_at(x, &places(x), base)
}

/// Rotates queries or keys as [`rotary`] does, by positions that are given: a decoder that reads one token
/// behind others rotates it by its own position.
///
/// Shapes: x `[B, ..., T, d]`, positions in f32 that broadcast to `[B, ..., T, 1]`, to the shape of x.
///
/// Errors: x has fewer than two axes, or d is odd.
pub fn rotary_at(x: &Var, positions: &Var, base: f32) -> Var {
    let width = x.dims().last().copied().unwrap_or(1);
    rotary_by(x, positions, &rotary_rates(x.tape(), width, base))
}

/// Returns the angles by which [`rotary`] turns the pairs of features from one position to the next:
/// `base^(-2 i / width)` for pair i, as `[1, width / 2]`.
pub fn rotary_rates(tape: &Tape, width: usize, base: f32) -> Var {
    let place = tape.apply(Iota { dims: vec![1, width / 2], axis: 1 }, &[]).to_f32();
    // Computed by libm in f64, because the standard library's `ln` may differ between platforms.
    let log = libm::log(f64::from(base)) as f32;
    (place * (-2.0 * log / width as f32)).exp()
}

/// Rotates queries or keys as [`rotary_at`] does, by angles of your own: pair i turns by `rates[i]` from one
/// position to the next. Models for long texts scale the angles of [`rotary_rates`].
///
/// Shapes: x `[B, ..., T, d]`, positions in f32 that broadcast to `[B, ..., T, 1]`, and rates `[1, d / 2]`,
/// to the shape of x.
///
/// Errors: x has fewer than two axes, or d is odd.
pub fn rotary_by(x: &Var, positions: &Var, rates: &Var) -> Var {
    let Some(&[_, width]) = x.dims().last_chunk::<2>().filter(|[_, width]| width % 2 == 0) else {
        x.tape().fail_here("rotary", format!("{} has no positions with pairs of features", x.ty()));
        return x.clone();
    };
    let half = width / 2;
    let angle = positions * rates;
    let (cos, sin) = (angle.cos(), angle.sin());
    let (a, b) = (x.slice(-1, 0..half), x.slice(-1, half..width));
    let turned = [&a * &cos - &b * &sin, &b * &cos + &a * &sin];
    join(&turned, -1).unwrap_or_else(|| x.clone())
}

/// Returns the positions 0, 1, ... of `[B, ..., T, d]`, as `[T, 1]`.
fn places(x: &Var) -> Var {
    let steps = x.dims().iter().rev().nth(1).copied().unwrap_or(1);
    x.tape().apply(Iota { dims: vec![steps, 1], axis: 0 }, &[]).to_f32()
}

/// Repeats each head: `[B, heads, T, d]` to `[B, heads times, T, d]`, each head `times` times one after
/// the other (Ainslie et al. 2023: grouped-query attention; PyTorch's `repeat_interleave`).
///
/// Errors: x is not a batch of heads, `[B, heads, T, d]`.
pub fn repeat_heads(x: &Var, times: usize) -> Var {
    let &[heads, steps, width] = x.dims() else {
        x.tape().fail_here("repeat_heads", format!("{} is not a batch of heads", x.ty()));
        return x.clone();
    };
    if times == 1 {
        return x.clone();
    }
    let one = x.reshape(&[heads, 1, steps, width]);
    let repeated = one.expand(x.ty().lead, &[heads, times, steps, width]);
    repeated.reshape(&[heads.saturating_mul(times), steps, width])
}
