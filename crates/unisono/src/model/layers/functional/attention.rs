//! Scaled dot-product attention.

use std::ops::Range;

use unisono_graph::Var;
use unisono_graph::ops::Iota;

use super::sequence::join;

/// The score of a masked position. Its softmax is 0 in f32, and no gradient is NaN, which infinity would
/// make.
const UNSEEN: f32 = -1e30;
/// The number of queries whose scores are held at once. Longer sequences are computed block by block, and
/// again for the gradient.
const BLOCK: usize = 256;

/// Computes softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017; PyTorch's function of this name). If `causal`,
/// position t attends to the positions up to t only.
///
/// Shapes: q `[B, ..., T, d]`, k `[B, ..., S, d]` and v `[B, ..., S, e]` to `[B, ..., T, e]`.
///
/// Of sequences with T above 256 the scores of 256 queries are held at a time, as in Dao et al. 2022 but in
/// blocks of whole rows: memory grows with S, not with T S.
///
/// Errors: q or k has fewer than two axes.
pub fn scaled_dot_product_attention(q: &Var, k: &Var, v: &Var, causal: bool) -> Var {
    scaled_dot_product_attention_masked(q, k, v, causal, None)
}

/// Computes [`scaled_dot_product_attention`] where no query attends to a position whose `mask` is 0. The mask
/// broadcasts to `[B, ..., T, S]`; `None` masks nothing.
///
/// A query that may attend to nothing, such as padding on the left of a causal sequence, gets a mean of
/// values that it should not see: of all S, or, if causal and T is above 256, of those up to the end of its
/// block of 256. Its result must not be used, neither by later positions (the mask hides it from them) nor by
/// the loss (give it weight 0, or use [`CrossEntropy::ignore_index`](crate::CrossEntropy::ignore_index)).
pub fn scaled_dot_product_attention_masked(
    q: &Var,
    k: &Var,
    v: &Var,
    causal: bool,
    mask: Option<&Var>,
) -> Var {
    let (Some(&[t, d]), Some(&[s, _])) = (q.dims().last_chunk::<2>(), k.dims().last_chunk::<2>()) else {
        q.tape().fail_here("attention", format!("no places in {} and {}", q.ty(), k.ty()));
        return q.clone();
    };
    let scaled = q * (1.0 / d as f32).sqrt();
    if t <= BLOCK {
        return attend(&scaled, k, v, causal.then_some(0), mask);
    }
    let blocks = (0..t).step_by(BLOCK).map(|first| {
        let own = first..t.min(first + BLOCK);
        // No query of a causal block attends to what comes after the block.
        let seen = 0..if causal { own.end.min(s) } else { s };
        let q = part(&scaled, -2, &own);
        let [k, v] = [k, v].map(|x| part(x, -2, &seen));
        let mask = mask.map(|m| part(&part(m, -1, &seen), -2, &own));
        q.tape().recompute(|| attend(&q, &k, &v, causal.then_some(first), mask.as_ref()))
    });
    join(&blocks.collect::<Vec<_>>(), -2).unwrap_or_else(|| q.clone())
}

/// Returns the positions `own` along an axis, which is counted from the last. An axis of length 1 broadcasts
/// and a missing one is no axis: of these it returns all.
fn part(x: &Var, axis: isize, own: &Range<usize>) -> Var {
    let length = x.dims().len().checked_add_signed(axis).and_then(|axis| x.dims().get(axis));
    match length {
        Some(&length) if length > 1 && *own != (0..length) => x.slice(axis, own.clone()),
        _ => x.clone(),
    }
}

/// Computes attention with its whole score matrix. `causal` holds the position of the first query, if the
/// attention is causal.
fn attend(q: &Var, k: &Var, v: &Var, causal: Option<usize>, mask: Option<&Var>) -> Var {
    let mut scores = q.matmul_t(k);
    let tape = q.tape();
    let unseen = tape.constant(UNSEEN);
    if let (Some(first), Some(&[t, s])) = (causal, scores.dims().last_chunk::<2>()) {
        // Row and column numbers are views without memory, so the mask needs none either.
        let place = |axis| tape.apply(Iota { dims: vec![first + t, s], axis }, &[]);
        let [row, column] = [0, 1].map(|axis| part(&place(axis), -2, &(first..first + t)));
        scores = column.greater(&row).select(&unseen, &scores);
    }
    if let Some(mask) = mask {
        scores = mask.select(&scores, &unseen);
    }
    scores.softmax().matmul(v)
}
