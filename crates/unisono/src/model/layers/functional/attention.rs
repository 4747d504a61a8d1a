//! Attention.

use std::ops::Range;

use unisono_graph::Var;
use unisono_graph::ops::Iota;

use super::sequence::join;

/// What a place that must not be seen gets instead of its score: its share is 0 in f32, and no gradient is NaN.
const UNSEEN: f32 = -1e30;
/// Places whose scores are held at once; those of longer sequences are computed block by block, and again for the gradient.
const BLOCK: usize = 256;

/// softmax(q k^T / sqrt(d)) v over `[B, ..., T, d]`, `[B, ..., S, d]` and `[B, ..., S, e]` to `[B, ..., T, e]` (Vaswani et al.
/// 2017; PyTorch's function of this name). Causal: place t sees the places up to t only.
///
/// Of sequences longer than 256 the scores of 256 places are held at a time, as in Dao et al. 2022 but in blocks of whole rows:
/// memory grows with S, not with T S.
pub fn scaled_dot_product_attention(q: &Var, k: &Var, v: &Var, causal: bool) -> Var {
    scaled_dot_product_attention_masked(q, k, v, causal, None)
}

/// As [`scaled_dot_product_attention`]; places of `[B, ..., S, d]` whose `mask` is 0 are seen by none. The mask broadcasts to
/// `[B, ..., T, S]`.
///
/// A place that sees nothing, such as padding on the left of a causal sequence, gets a mean of values that it should not see: of
/// all S, or, if causal and T is above 256, of those up to the end of its block of 256. Nothing may be made of it, neither by the
/// places after it (the mask hides it from them) nor by the loss (a weight of 0, or
/// [`CrossEntropy::ignore_index`](crate::CrossEntropy::ignore_index)).
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
        // What is ahead of the block is seen by none of it.
        let seen = 0..if causal { own.end.min(s) } else { s };
        let q = part(&scaled, -2, &own);
        let [k, v] = [k, v].map(|x| part(x, -2, &seen));
        let mask = mask.map(|m| part(&part(m, -1, &seen), -2, &own));
        q.tape().recompute(|| attend(&q, &k, &v, causal.then_some(first), mask.as_ref()))
    });
    join(&blocks.collect::<Vec<_>>(), -2).unwrap_or_else(|| q.clone())
}

/// The places of `own` along an axis, counted from the last; all of an axis that is repeated or not there.
fn part(x: &Var, axis: isize, own: &Range<usize>) -> Var {
    let length = x.dims().len().checked_add_signed(axis).and_then(|axis| x.dims().get(axis));
    match length {
        Some(&length) if length > 1 && *own != (0..length) => x.slice(axis, own.clone()),
        _ => x.clone(),
    }
}

/// Attention with the whole score matrix; `causal` with the place of the first row.
fn attend(q: &Var, k: &Var, v: &Var, causal: Option<usize>, mask: Option<&Var>) -> Var {
    let mut scores = q.matmul_t(k);
    let tape = q.tape();
    let unseen = tape.constant(UNSEEN);
    if let (Some(first), Some(&[t, s])) = (causal, scores.dims().last_chunk::<2>()) {
        // Views of numbers that need no memory, so that the mask needs none.
        let place = |axis| tape.apply(Iota { dims: vec![first + t, s], axis }, &[]);
        let [row, column] = [0, 1].map(|axis| part(&place(axis), -2, &(first..first + t)));
        scores = column.greater(&row).select(&unseen, &scores);
    }
    if let Some(mask) = mask {
        scores = mask.select(&scores, &unseen);
    }
    scores.softmax().matmul(v)
}
