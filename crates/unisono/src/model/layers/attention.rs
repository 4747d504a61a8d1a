use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::Dense;
use super::functional::scaled_dot_product_attention_masked;
use crate::model::{Context, Forward, Initializer, Layer};

/// Multi-head self-attention (Vaswani et al. 2017; PyTorch's `MultiheadAttention` with `batch_first=True`).
///
/// Each head computes softmax(q k^T / sqrt(d)) v with d = E / heads; the heads' results are joined and
/// projected.
///
/// Shapes: `[B, T, E]` to `[B, T, E]`.
///
/// Parameters: `in_proj_weight` `[3 E, E]` for query, key and value (Default: Glorot uniform), `in_proj_bias`
/// `[3 E]` (Default: zeros), and those of the [`Dense`] layer `out_proj`: `out_proj.weight` `[E, E]` and
/// `out_proj.bias` `[E]`.
///
/// Errors: the input is not `[B, T, E]`, or the heads do not divide E.
///
/// ```
/// use unisono::{FromFn, MultiHeadAttention};
///
/// let attention = MultiHeadAttention::new(8).causal();
/// // With a mask: 1 for tokens, 0 for padding.
/// let model = FromFn::new("masked", move |cx, x| {
///     let mask = x.slice(-1, 0..1).reshape(&[x.dims()[0]]);
///     attention.attend(cx, x, x, Some(&mask))
/// });
/// ```
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiHeadAttention {
    heads: usize,
    causal: bool,
    bias: bool,
}

impl MultiHeadAttention {
    /// Creates a layer with this number of heads, which must divide the width E. By default each position
    /// attends to all positions, and the projections have biases.
    pub fn new(heads: usize) -> Self {
        Self { heads, causal: false, bias: true }
    }

    /// Makes the attention causal: each position attends to itself and to those before it. Default: to all
    /// positions.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Leaves the biases of all projections out. Default: they are there.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Computes attention of the positions of `x` `[B, T, E]` to those of `context` `[B, S, E]`:
    /// cross-attention, or self-attention where `context` is `x`. Returns `[B, T, E]`.
    ///
    /// Positions of the context whose `mask` `[B, S]` is 0 are padding, to which no position attends.
    pub fn attend(&self, cx: &mut Context, x: &Var, context: &Var, mask: Option<&Var>) -> Var {
        let fits = |v: &Var| v.ty().lead == Lead::Sample && v.dims().len() == 2 && v.dims()[1] == x.dims()[1];
        if x.dims().len() != 2 || !fits(x) || !fits(context) {
            let problem = format!("needs [B, places, width] twice, got {} and {}", x.ty(), context.ty());
            cx.fail(self.name(), problem);
            return x.clone();
        }
        let (width, heads) = (x.dims()[1], self.heads);
        if heads == 0 || !width.is_multiple_of(heads) {
            cx.fail(self.name(), format!("a width of {width} does not divide among {heads} heads"));
            return x.clone();
        }
        let weight = cx.parameter("in_proj_weight", &[3 * width, width], Initializer::GlorotUniform);
        let bias = self.bias.then(|| cx.parameter("in_proj_bias", &[3 * width], Initializer::Zeros));
        let project = |v: &Var, from: usize, to: usize| {
            let all = (from, to) == (0, 3);
            let part = |p: &Var| if all { p.clone() } else { p.slice(0, from * width..to * width) };
            let y = v.matmul_t(&part(&weight));
            bias.as_ref().map_or_else(|| y.clone(), |b| &y + part(b))
        };
        // [B, T, E] -> [B, heads, T, E / heads].
        let split = |v: &Var, i: usize| {
            let own = v.slice(-1, i * width..(i + 1) * width);
            own.reshape(&[v.dims()[0], heads, width / heads]).permute(&[1, 0, 2])
        };
        let [q, k, v] = if x.id() == context.id() {
            let all = project(x, 0, 3);
            [0, 1, 2].map(|i| split(&all, i))
        } else {
            let (q, kv) = (project(x, 0, 1), project(context, 1, 3));
            [split(&q, 0), split(&kv, 0), split(&kv, 1)]
        };
        let mask = mask.map(|m| m.reshape(&[1, 1, m.ty().count()]));
        let found = scaled_dot_product_attention_masked(&q, &k, &v, self.causal, mask.as_ref());
        let joined = found.permute(&[1, 0, 2]).reshape(x.dims());
        let out = if self.bias { Dense::new(width) } else { Dense::new(width).no_bias() };
        cx.apply("out_proj", &out, &joined)
    }
}

impl Forward for MultiHeadAttention {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.attend(cx, x, x, None)
    }
}
