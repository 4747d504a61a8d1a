use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::Dense;
use super::functional::{repeat_heads, rotary, scaled_dot_product_attention_masked};
use super::settings::{Problem, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Multi-head self-attention (Vaswani et al. 2017; PyTorch's `MultiheadAttention` with `batch_first=True`).
///
/// Each head computes softmax(q k^T / sqrt(d)) v with d = E / heads; the heads' results are joined and
/// projected.
///
/// Shapes: `[B, T, E]` to `[B, T, E]`.
///
/// With [`kv_heads`](Self::kv_heads), several heads share a head of keys and values (Ainslie et al. 2023:
/// grouped-query attention; PyTorch's `enable_gqa`). With [`rotary`](Self::rotary), queries and keys are
/// rotated by their positions (Su et al. 2021).
///
/// Parameters: `in_proj_weight` `[3 E, E]` for query, key and value (Default: Glorot uniform),
/// `in_proj_bias` `[3 E]` (Default: zeros), in which keys and values have d kv_heads rows each in place of
/// E, and those of the [`Dense`] layer `out_proj`: `out_proj.weight` `[E, E]` and `out_proj.bias` `[E]`.
///
/// Errors: the input is not `[B, T, E]`, the heads do not divide E, the heads of keys and values do not
/// divide the heads, or positions are rotations while d is odd or the base is not above 1.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_heads: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotary: Option<f32>,
}

impl MultiHeadAttention {
    /// Creates a layer with this number of heads, which must divide the width E. By default each position
    /// attends to all positions, and the projections have biases.
    pub fn new(heads: usize) -> Self {
        Self { heads, causal: false, bias: true, kv_heads: None, rotary: None }
    }

    /// Makes the attention causal: each position attends to itself and to those before it. Default: to all
    /// positions.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Omits the biases of all projections. Default: the layer has them.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Sets the number of heads of keys and values, which must divide the number of heads. Each of them
    /// serves as many heads one after the other. Default: the number of heads. With 1 it is multi-query
    /// attention.
    pub fn kv_heads(mut self, heads: usize) -> Self {
        self.kv_heads = Some(heads);
        self
    }

    /// Rotates queries and keys by their positions, which are counted from 0, with the base 10,000: see
    /// [`functional::rotary`](super::functional::rotary). It is meant for up to 12,000 positions. Default:
    /// positions have no effect.
    pub fn rotary(self) -> Self {
        self.rotary_base(10_000.0)
    }

    /// Rotates queries and keys as [`MultiHeadAttention::rotary`] does, with this base, which must be
    /// above 1.
    pub fn rotary_base(mut self, base: f32) -> Self {
        self.rotary = Some(base);
        self
    }

    /// Returns the layer for positions of two sequences, whose order has no meaning to each other.
    pub(super) fn across(self) -> Self {
        Self { causal: false, rotary: None, ..self }
    }

    /// Checks the heads of keys and values and the rotation, for heads of `d` features.
    fn checks(&self, d: usize) -> [Problem; 2] {
        let shared = self.kv_heads.filter(|&heads| heads == 0 || !self.heads.is_multiple_of(heads));
        let base = self.rotary.filter(|base| !(*base > 1.0 && base.is_finite() && d.is_multiple_of(2)));
        [
            shared
                .map(|heads| format!("{heads} heads of keys and values do not divide {} heads", self.heads)),
            base.map(|base| format!("heads of {d} features cannot be rotated with base {base}")),
        ]
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
        let d = width / heads;
        if !valid(self.name(), cx, self.checks(d)) {
            return x.clone();
        }
        let kv_heads = self.kv_heads.unwrap_or(heads);
        // The rows of query, key and value begin and end here.
        let rows = [0, width, width + d * kv_heads, width + 2 * d * kv_heads];
        let weight = cx.parameter("in_proj_weight", &[rows[3], width], Initializer::GlorotUniform);
        let bias = self.bias.then(|| cx.parameter("in_proj_bias", &[rows[3]], Initializer::Zeros));
        let project = |v: &Var, from: usize, to: usize| {
            let all = (from, to) == (0, 3);
            let part = |p: &Var| if all { p.clone() } else { p.slice(0, rows[from]..rows[to]) };
            let y = v.matmul_t(&part(&weight));
            bias.as_ref().map_or_else(|| y.clone(), |b| &y + part(b))
        };
        // [B, T, d heads] -> [B, heads, T, d], for the heads of part i; `first` is the first part of v.
        let split = |v: &Var, first: usize, i: usize| {
            let own = v.slice(-1, rows[i] - rows[first]..rows[i + 1] - rows[first]);
            own.reshape(&[v.dims()[0], if i == 0 { heads } else { kv_heads }, d]).permute(&[1, 0, 2])
        };
        let [mut q, mut k, mut v] = if x.id() == context.id() {
            let all = project(x, 0, 3);
            [0, 1, 2].map(|i| split(&all, 0, i))
        } else {
            let (q, kv) = (project(x, 0, 1), project(context, 1, 3));
            [split(&q, 0, 0), split(&kv, 1, 1), split(&kv, 1, 2)]
        };
        if let Some(base) = self.rotary {
            [q, k] = [rotary(&q, base), rotary(&k, base)];
        }
        if kv_heads != heads {
            [k, v] = [repeat_heads(&k, heads / kv_heads), repeat_heads(&v, heads / kv_heads)];
        }
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
