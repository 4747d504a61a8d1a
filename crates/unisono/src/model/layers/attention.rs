use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::Dense;
use super::functional::scaled_dot_product_attention_masked;
use crate::{Context, Description, Initializer, Layer};

/// Self-attention with several heads: `[B, T, E] -> [B, T, E]` (Vaswani et al. 2017; PyTorch's `MultiheadAttention`, batch
/// first).
///
/// Parameters: `in_proj_weight` `[3 E, E]` for query, key and value, Glorot uniform; `in_proj_bias` `[3 E]`, zeros; and
/// `out_proj.weight` `[E, E]`, `out_proj.bias` `[E]`.
///
/// ```
/// use unisono::{FromFn, MultiHeadAttention};
///
/// let attention = MultiHeadAttention::new(8).causal();
/// // With a mask: 1 for places that are there, 0 for padding.
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
    /// So many heads; they divide the width E.
    pub fn new(heads: usize) -> Self {
        Self { heads, causal: false, bias: true }
    }

    /// Each place sees only itself and those before it.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Without biases.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// What the places of `x` `[B, T, E]` find among those of `context` `[B, S, E]` (`x` itself for self-attention). Places of
    /// the context whose `mask` `[B, S]` is 0 are padding and found by none.
    pub fn attend(&self, cx: &mut Context, x: &Var, context: &Var, mask: Option<&Var>) -> Var {
        let fits = |v: &Var| v.ty().lead == Lead::Sample && v.dims().len() == 2 && v.dims()[1] == x.dims()[1];
        if x.dims().len() != 2 || !fits(x) || !fits(context) {
            let problem = format!("needs [B, places, width] twice, got {} and {}", x.ty(), context.ty());
            cx.fail("multi_head_attention", problem);
            return x.clone();
        }
        let (width, heads) = (x.dims()[1], self.heads);
        if heads == 0 || !width.is_multiple_of(heads) {
            cx.fail(
                "multi_head_attention",
                format!("a width of {width} does not divide among {heads} heads"),
            );
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

impl Layer for MultiHeadAttention {
    fn name(&self) -> &str {
        "multi_head_attention"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::MultiHeadAttention(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.attend(cx, x, x, None)
    }
}
