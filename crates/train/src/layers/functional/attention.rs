//! Attention.

use unisono_graph::Var;
use unisono_graph::ops::Iota;

/// What a place that must not be seen gets instead of its score: its share is 0 in f32, and no gradient is NaN.
const UNSEEN: f32 = -1e30;

/// softmax(q k^T / sqrt(d)) v over `[B, ..., T, d]`, `[B, ..., S, d]` and `[B, ..., S, e]` to `[B, ..., T, e]` (Vaswani et al.
/// 2017; PyTorch's function of this name). Causal: place t sees the places up to t only.
pub fn scaled_dot_product_attention(q: &Var, k: &Var, v: &Var, causal: bool) -> Var {
    scaled_dot_product_attention_masked(q, k, v, causal, None)
}

/// As [`scaled_dot_product_attention`]; places of `[B, ..., S, d]` whose `mask` is 0 are seen by none. The mask broadcasts to
/// `[B, ..., T, S]`. A place that sees nothing gets the mean of all values.
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
    let mut scores = (q * (1.0 / d as f32).sqrt()).matmul_t(k);
    let unseen = q.tape().constant(UNSEEN);
    if causal {
        let place = |axis| q.tape().apply(Iota { dims: vec![t, s], axis }, &[]);
        scores = place(1).greater(&place(0)).select(&unseen, &scores);
    }
    if let Some(mask) = mask {
        scores = mask.select(&scores, &unseen);
    }
    scores.softmax().matmul(v)
}
