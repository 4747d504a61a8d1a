use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Lead, Var};

use super::Dense;
use super::functional::{
    RelativeBuckets, relative_position_bias, repeat_heads, rotary, scaled_dot_product_attention_biased,
    scaled_dot_product_attention_masked,
};
use super::settings::{MASK, Problem, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Multi-head self-attention (Vaswani et al. 2017; PyTorch's `MultiheadAttention` with `batch_first=True`).
///
/// Each head computes softmax(q k^T / sqrt(d)) v with d = E / heads, or [`head_size`](Self::head_size)
/// features; the heads' results are joined and projected.
///
/// Shapes: `[B, T, E]` to `[B, T, E]`.
///
/// With [`kv_heads`](Self::kv_heads), several heads share a head of keys and values (Ainslie et al. 2023:
/// grouped-query attention; PyTorch's `enable_gqa`). With [`rotary`](Self::rotary), queries and keys are
/// rotated by their positions (Su et al. 2021). With [`relative_positions`](Self::relative_positions), the
/// scores get a bias for each head and distance (Raffel et al. 2020: T5).
///
/// Parameters: `in_proj_weight` `[3 d heads, E]` for query, key and value (Default: Glorot uniform),
/// `in_proj_bias` `[3 d heads]` (Default: zeros), in which keys and values have d kv_heads rows each in place
/// of d heads, and those of the [`Dense`] layer `out_proj`: `out_proj.weight` `[E, d heads]` and
/// `out_proj.bias` `[E]`; with relative positions `relative_attention_bias.weight` `[buckets, heads]`
/// (Default: normal with deviation 0.02).
///
/// Errors: the input is not `[B, T, E]`. The number of heads does not divide E, and no head size is set. The
/// number of key and value heads does not divide the number of heads. With rotary positions: d is odd, or the
/// base is not above 1. With relative positions: the number of buckets and the farthest distance do not fit
/// each other.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head_size: Option<usize>,
    /// The buckets of distances, and the distance from which on all share the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    relative: Option<[usize; 2]>,
}

impl MultiHeadAttention {
    /// Creates a layer with this number of heads, which must divide the width E. By default each position
    /// attends to all positions, and the projections have biases.
    pub fn new(heads: usize) -> Self {
        let (kv_heads, rotary, head_size, relative) = (None, None, None, None);
        Self { heads, causal: false, bias: true, kv_heads, rotary, head_size, relative }
    }

    /// Makes the attention causal: each position attends to itself and to those before it. Default: to all
    /// positions.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// Omits the biases of all projections. Default: the layer has them.
    pub fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// Sets the number of heads of keys and values, which must divide the number of (query) heads. Each of
    /// them is shared by heads / `kv_heads` consecutive query heads. With 1, this is multi-query attention.
    /// Default: the number of heads.
    pub fn kv_heads(self, heads: usize) -> Self {
        Self { kv_heads: Some(heads), ..self }
    }

    /// Rotates queries and keys by their positions, which are counted from 0, with the base 10,000: see
    /// [`functional::rotary`](super::functional::rotary). It is meant for up to 12,000 positions. Default:
    /// positions have no effect.
    pub fn rotary(self) -> Self {
        self.rotary_base(10_000.0)
    }

    /// Rotates queries and keys as [`MultiHeadAttention::rotary`] does, with this base, which must be
    /// above 1.
    pub fn rotary_base(self, base: f32) -> Self {
        Self { rotary: Some(base), ..self }
    }

    /// Sets the number of features of each head, d. Default: E / heads.
    pub fn head_size(self, features: usize) -> Self {
        Self { head_size: Some(features), ..self }
    }

    /// Adds a bias to the scores that depends on the head and on the distance of the positions. Distances
    /// fall into this number of buckets, and all from `farthest` on into the last one: see
    /// [`RelativeBuckets`](super::functional::RelativeBuckets). If the attention is causal, all buckets are
    /// for positions before the query. Default: positions have no effect.
    pub fn relative_positions(self, buckets: usize, farthest: usize) -> Self {
        Self { relative: Some([buckets, farthest]), ..self }
    }

    /// Returns the same attention for another context, which has no order relative to the queries.
    pub(super) fn across(mut self) -> Self {
        (self.causal, self.rotary, self.relative) = (false, None, None);
        self
    }

    /// Returns the buckets of distances.
    fn buckets(&self) -> Option<RelativeBuckets> {
        let [buckets, farthest] = self.relative?;
        Some(RelativeBuckets { buckets, farthest, both_directions: !self.causal })
    }

    /// Returns the features of a head for inputs of `width` features.
    fn features(&self, width: usize) -> Result<usize, String> {
        match (self.head_size, width.checked_rem(self.heads)) {
            (Some(0), _) => Err("heads of 0 features".into()),
            (Some(_), None) => Err("0 heads".into()),
            (Some(d), _) if d > 1 << 20 || self.heads > 1 << 20 => {
                Err(format!("{} heads of {d} features are too many", self.heads))
            }
            (Some(d), _) => Ok(d),
            (None, Some(0)) => Ok(width / self.heads),
            (None, _) => Err(format!("a width of {width} does not divide among {} heads", self.heads)),
        }
    }

    /// Checks the heads of keys and values and the positions, for heads of `d` features.
    fn checks(&self, d: usize) -> [Problem; 4] {
        let shared = self.kv_heads.filter(|&heads| heads == 0 || !self.heads.is_multiple_of(heads));
        let base = self.rotary.filter(|base| !(*base > 1.0 && base.is_finite()));
        let is_odd = self.rotary.is_some() && !d.is_multiple_of(2);
        [
            shared
                .map(|heads| format!("{heads} heads of keys and values do not divide {} heads", self.heads)),
            base.map(|base| {
                format!("the base of rotary positions is {base}, and must be finite and above 1")
            }),
            is_odd.then(|| {
                format!("rotary positions turn pairs of features, and a head has {d}: an odd number")
            }),
            self.buckets().and_then(|buckets| buckets.problem()),
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
        if let Some(mask) = mask.filter(|mask| mask.ty().dtype != DType::F32) {
            cx.fail(self.name(), format!("a mask {}: {MASK}", mask.ty()));
            return x.clone();
        }
        let (width, heads) = (x.dims()[1], self.heads);
        let d = match self.features(width) {
            Ok(d) => d,
            Err(problem) => {
                cx.fail(self.name(), problem);
                return x.clone();
            }
        };
        if !valid(self.name(), cx, self.checks(d)) {
            return x.clone();
        }
        if !self.causal && x.id() == context.id() {
            cx.looks_ahead();
        }
        let kv_heads = self.kv_heads.unwrap_or(heads);
        // The rows of query, key and value begin and end here.
        let all = d * heads;
        let rows = [0, all, all + d * kv_heads, all + 2 * d * kv_heads];
        let weight = cx.kernel("in_proj_weight", &[rows[3], width], 0, Initializer::GlorotUniform);
        let bias = self.bias.then(|| cx.parameter("in_proj_bias", &[rows[3]], Initializer::Zeros));
        let project = |v: &Var, from: usize, to: usize| {
            let whole = (from, to) == (0, 3);
            let part = |p: &Var| if whole { p.clone() } else { p.slice(0, rows[from]..rows[to]) };
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
        let found = match self.buckets() {
            None => scaled_dot_product_attention_masked(&q, &k, &v, self.causal, mask.as_ref()),
            Some(by) => {
                let start = Initializer::Normal(0.02);
                let table = cx.parameter("relative_attention_bias.weight", &[by.buckets, heads], start);
                let bias = relative_position_bias(&table, x.dims()[0], context.dims()[0], by);
                let scale = (1.0 / d as f32).sqrt();
                scaled_dot_product_attention_biased([&q, &k, &v], &bias, scale, self.causal, mask.as_ref())
            }
        };
        let joined = found.permute(&[1, 0, 2]).reshape(&[x.dims()[0], all]);
        let out = if self.bias { Dense::new(width) } else { Dense::new(width).no_bias() };
        cx.apply("out_proj", &out, &joined)
    }
}

impl Forward for MultiHeadAttention {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.attend(cx, x, x, None)
    }
}
