//! Scaled dot-product attention.

use std::ops::Range;

use unisono_graph::Var;
use unisono_graph::ops::{ATTENTION_MAX_WIDTH, Attention, Iota};

use super::sequence::join;

/// The score of a masked position. Its softmax is 0 in f32, and no gradient is NaN, which infinity would
/// make.
const UNSEEN: f32 = -1e30;
/// The number of queries whose scores are held at once where no kernel of attention takes so many features.
/// Longer sequences are computed block by block, and again for the gradient.
const BLOCK: usize = 256;

/// Computes softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017; PyTorch's function of this name). If `causal`,
/// position t attends to the positions up to t only.
///
/// Shapes: q `[B, ..., T, d]`, k `[B, ..., S, d]` and v `[B, ..., S, e]` to `[B, ..., T, e]`.
///
/// Up to 256 features (d and e) one kernel computes it and no scores are in memory, forward and backward (Dao
/// et al. 2022). With more features the scores of 256 queries are held at a time. Memory grows with S, not
/// with T S.
///
/// Errors: q or k has fewer than two axes.
pub fn scaled_dot_product_attention(q: &Var, k: &Var, v: &Var, causal: bool) -> Var {
    scaled_dot_product_attention_masked(q, k, v, causal, None)
}

/// Computes [`scaled_dot_product_attention`] where no query attends to a position whose `mask` is 0. The mask
/// broadcasts to `[B, ..., T, S]`; `None` masks nothing.
///
/// If the mask leaves a query no position to attend to, as for padding on the left of a causal sequence, its
/// result is zeros. With more than 256 features, its result is instead a mean of masked values: do not use
/// it.
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
    let scale = (1.0 / d as f32).sqrt();
    let e = v.dims().last().copied().unwrap_or(0);
    if d.max(e) <= ATTENTION_MAX_WIDTH {
        return in_one([q, k, v], mask, Attention { causal, scale });
    }
    in_blocks([&(q * scale), k, v], [t, s], causal, None, mask)
}

/// Computes softmax(scale q k^T + bias) v, whose `bias` is added to the scores (PyTorch's
/// `scaled_dot_product_attention` with an `attn_mask` of floats; T5 has a bias for each head and distance).
/// No query attends to a position whose `mask` is 0, nor, if `causal`, to one after it.
///
/// Shapes: q `[B, ..., T, d]`, k `[B, ..., S, d]` and v `[B, ..., S, e]` to `[B, ..., T, e]`. The bias and
/// the mask broadcast to `[B, ..., T, S]`.
///
/// The scores of 256 queries are held at a time, and computed again for the gradient. A query that may attend
/// to nothing gets a mean of values that it should not see, which must not be used.
///
/// Errors: q or k has fewer than two axes.
pub fn scaled_dot_product_attention_biased(
    [q, k, v]: [&Var; 3],
    bias: &Var,
    scale: f32,
    causal: bool,
    mask: Option<&Var>,
) -> Var {
    let (Some(&[t, _]), Some(&[s, _])) = (q.dims().last_chunk::<2>(), k.dims().last_chunk::<2>()) else {
        q.tape().fail_here("attention", format!("no places in {} and {}", q.ty(), k.ty()));
        return q.clone();
    };
    let scaled = if scale == 1.0 { q.clone() } else { q * scale };
    in_blocks([&scaled, k, v], [t, s], causal, Some(bias), mask)
}

/// Computes attention of T queries to S positions, block by block if there are many queries.
fn in_blocks(
    [q, k, v]: [&Var; 3],
    [t, s]: [usize; 2],
    causal: bool,
    bias: Option<&Var>,
    mask: Option<&Var>,
) -> Var {
    if t <= BLOCK {
        return attend([q, k, v], causal.then_some(0), bias, mask);
    }
    let blocks = (0..t).step_by(BLOCK).map(|first| {
        let own = first..t.min(first + BLOCK);
        // No query of a causal block attends to what comes after the block.
        let seen = 0..if causal { own.end.min(s) } else { s };
        let q = part(q, -2, &own);
        let [k, v] = [k, v].map(|x| part(x, -2, &seen));
        let [bias, mask] = [bias, mask].map(|x| x.map(|x| part(&part(x, -1, &seen), -2, &own)));
        q.tape().recompute(|| attend([&q, &k, &v], causal.then_some(first), bias.as_ref(), mask.as_ref()))
    });
    join(&blocks.collect::<Vec<_>>(), -2).unwrap_or_else(|| q.clone())
}

/// Computes attention in one kernel.
fn in_one([q, k, v]: [&Var; 3], mask: Option<&Var>, op: Attention) -> Var {
    // The operands have the same axes before their last two, and a mask has all axes.
    let all = || [q, k, v].into_iter();
    let lead = all().chain(mask).map(|x| x.ty().lead).max().unwrap_or(q.ty().lead);
    let outer = |x: &Var| x.dims()[..x.dims().len().saturating_sub(2)].to_vec();
    let most = all().map(outer).max_by_key(Vec::len).unwrap_or_default();
    let whole = |x: &Var| {
        let own = x.dims().len().saturating_sub(2);
        let dims: Vec<usize> = most.iter().chain(&x.dims()[own..]).copied().collect();
        if (x.ty().lead, x.dims()) == (lead, &dims[..]) { x.clone() } else { x.expand(lead, &dims) }
    };
    let rank = most.len() + 2;
    let mask = mask.map(|m| {
        let missing = rank.saturating_sub(m.dims().len());
        let dims: Vec<usize> = std::iter::repeat_n(1, missing).chain(m.dims().iter().copied()).collect();
        if missing == 0 { m.clone() } else { m.reshape(&dims) }
    });
    let operands: Vec<Var> = all().map(whole).chain(mask).collect();
    q.tape().apply(op, &operands.iter().collect::<Vec<_>>())
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
fn attend([q, k, v]: [&Var; 3], causal: Option<usize>, bias: Option<&Var>, mask: Option<&Var>) -> Var {
    let scores = q.matmul_t(k);
    let mut scores = bias.map_or_else(|| scores.clone(), |bias| &scores + bias);
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
