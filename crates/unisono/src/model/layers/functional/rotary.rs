//! What attention needs beside its scores: positions as rotations, and heads that share keys and values.

use unisono_graph::Var;
use unisono_graph::ops::Iota;

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
    let steps = x.dims().iter().rev().nth(1).copied().unwrap_or(1);
    let places = x.tape().apply(Iota { dims: vec![steps, 1], axis: 0 }, &[]).to_f32();
    rotary_at(x, &places, base)
}

/// Rotates queries or keys as [`rotary`] does, by positions that are given: a decoder that reads one token
/// behind others rotates it by its own position.
///
/// Shapes: x `[B, ..., T, d]`, positions in f32 that broadcast to `[B, ..., T, 1]`, to the shape of x.
///
/// Errors: x has fewer than two axes, or d is odd.
pub fn rotary_at(x: &Var, positions: &Var, base: f32) -> Var {
    let tape = x.tape();
    let Some(&[_, width]) = x.dims().last_chunk::<2>().filter(|[_, width]| width % 2 == 0) else {
        tape.fail_here("rotary", format!("{} has no positions with pairs of features", x.ty()));
        return x.clone();
    };
    let half = width / 2;
    let place = tape.apply(Iota { dims: vec![1, half], axis: 1 }, &[]).to_f32();
    let rate = (place * (-2.0 * base.ln() / width as f32)).exp();
    let angle = positions * rate;
    let (cos, sin) = (angle.cos(), angle.sin());
    let (a, b) = (x.slice(-1, 0..half), x.slice(-1, half..width));
    let turned = [&a * &cos - &b * &sin, &b * &cos + &a * &sin];
    join(&turned, -1).unwrap_or_else(|| x.clone())
}

/// Repeats each head: `[B, heads, T, d]` to `[B, heads times, T, d]`, each head `times` times one after
/// the other (Ainslie et al. 2023: grouped-query attention; PyTorch's `repeat_interleave`).
///
/// Errors: x is no batch of heads.
pub fn repeat_heads(x: &Var, times: usize) -> Var {
    let &[heads, steps, width] = x.dims() else {
        x.tape().fail_here("repeat_heads", format!("{} is no batch of heads", x.ty()));
        return x.clone();
    };
    if times == 1 {
        return x.clone();
    }
    let one = x.reshape(&[heads, 1, steps, width]);
    let repeated = one.expand(x.ty().lead, &[heads, times, steps, width]);
    repeated.reshape(&[heads.saturating_mul(times), steps, width])
}
