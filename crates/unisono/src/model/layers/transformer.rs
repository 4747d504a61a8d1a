use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{not_negative, rate, valid};
use super::{Activation, Dense, Dropout, LayerNorm, MultiHeadAttention, RmsNorm};
use crate::model::{Context, Forward, Layer};

/// A transformer block. By default layer normalization comes first (Xiong et al. 2020; PyTorch's
/// `TransformerEncoderLayer(norm_first=True, activation="gelu")`): x += attention(norm1(x)), then
/// x += linear2(gelu(linear1(norm2(x)))).
///
/// The settings make the blocks of most published models: [`norm_last`](Self::norm_last) with
/// [`Activation::Gelu`] is BERT's, [`rms_norm`](Self::rms_norm) with [`gated`](Self::gated),
/// [`Activation::Silu`], [`rotary`](Self::rotary) and [`no_bias`](Self::no_bias) is Llama's.
/// [`cross_attention`](Self::cross_attention) makes it a decoder's block (PyTorch's
/// `TransformerDecoderLayer`).
///
/// Shapes: `[B, T, E]` to `[B, T, E]`.
///
/// Parameters: those of its layers `norm1` and `norm2` ([`LayerNorm`] or [`RmsNorm`]), `self_attn`
/// ([`MultiHeadAttention`]), `linear1` and `linear2` ([`Dense`], `[hidden, E]` and `[E, hidden]`), with their
/// defaults. If it is gated also `gate` ([`Dense`], `[hidden, E]`), and with cross-attention
/// `multihead_attn` ([`MultiHeadAttention`]) and `norm3`, which is then that of the dense layers.
///
/// Errors: those of its layers; a block with cross-attention is applied without a context.
#[doc(alias("TransformerEncoderLayer", "TransformerDecoderLayer"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerBlock {
    attention: MultiHeadAttention,
    hidden: Option<usize>,
    dropout: f32,
    #[serde(default, skip_serializing_if = "is_default")]
    norm_last: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    rms_norm: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    epsilon: Option<f32>,
    #[serde(default, skip_serializing_if = "is_default")]
    activation: Activation,
    #[serde(default, skip_serializing_if = "is_default")]
    gated: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    no_bias: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    cross: bool,
}

fn is_default<T: Default + PartialEq>(setting: &T) -> bool {
    *setting == T::default()
}

impl TransformerBlock {
    /// Creates a block with this number of heads, which must divide the width E. By default the attention is
    /// not causal, the hidden width is 4 E, the activation is gelu, and there is no dropout.
    pub fn new(heads: usize) -> Self {
        Self {
            attention: MultiHeadAttention::new(heads),
            hidden: None,
            dropout: 0.0,
            norm_last: false,
            rms_norm: false,
            epsilon: None,
            activation: Activation::Gelu,
            gated: false,
            no_bias: false,
            cross: false,
        }
    }

    /// Makes the attention causal: each position attends to itself and to those before it. Default: to all
    /// positions.
    pub fn causal(self) -> Self {
        Self { attention: self.attention.causal(), ..self }
    }

    /// Sets the number of heads of keys and values, which must divide the number of heads (grouped-query
    /// attention): see [`MultiHeadAttention::kv_heads`]. Default: the number of heads.
    pub fn kv_heads(self, heads: usize) -> Self {
        Self { attention: self.attention.kv_heads(heads), ..self }
    }

    /// Sets the number of features of each head: see [`MultiHeadAttention::head_size`]. Default: E / heads.
    pub fn head_size(self, features: usize) -> Self {
        Self { attention: self.attention.head_size(features), ..self }
    }

    /// Rotates queries and keys by their positions, with the base 10,000: see [`MultiHeadAttention::rotary`].
    /// Default: positions have no effect.
    pub fn rotary(self) -> Self {
        Self { attention: self.attention.rotary(), ..self }
    }

    /// Rotates queries and keys as [`TransformerBlock::rotary`] does, with this base, which must be above 1.
    pub fn rotary_base(self, base: f32) -> Self {
        Self { attention: self.attention.rotary_base(base), ..self }
    }

    /// Adds a bias for each head and distance to the scores of self-attention: see
    /// [`MultiHeadAttention::relative_positions`]. Default: positions have no effect.
    pub fn relative_positions(self, buckets: usize, farthest: usize) -> Self {
        Self { attention: self.attention.relative_positions(buckets, farthest), ..self }
    }

    /// Sets the number of features between the two dense layers. Default: 4 E.
    pub fn hidden(self, units: usize) -> Self {
        Self { hidden: Some(units), ..self }
    }

    /// Sets the dropout rate, in training, for the outputs of attention and dense layers. Default: 0.
    pub fn dropout(self, rate: f32) -> Self {
        Self { dropout: rate, ..self }
    }

    /// Normalizes the sum behind each part: x = norm1(x + attention(x)), then the same with the dense layers
    /// (Vaswani et al. 2017; PyTorch's `norm_first=False`). Default: before each part.
    pub fn norm_last(self) -> Self {
        Self { norm_last: true, ..self }
    }

    /// Normalizes by [`RmsNorm`]. Default: by [`LayerNorm`].
    pub fn rms_norm(self) -> Self {
        Self { rms_norm: true, ..self }
    }

    /// Sets the epsilon of the norms (PyTorch's `layer_norm_eps`). Default: 1e-5.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon: Some(epsilon), ..self }
    }

    /// Sets the activation between the two dense layers. Default: [`Activation::Gelu`].
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Multiplies by a gate between the dense layers (Shazeer 2020: GEGLU, SwiGLU):
    /// linear2(activation(gate(x)) linear1(x)). Default: linear2(activation(linear1(x))).
    pub fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    /// Omits the biases of attention and of the dense layers (PyTorch's `bias=False`, which omits those of
    /// the norms too). Default: the block has them.
    pub fn no_bias(mut self) -> Self {
        self.attention = self.attention.no_bias();
        self.no_bias = true;
        self
    }

    /// Adds attention to a context between self-attention and the dense layers. Such a block is applied by
    /// [`TransformerBlock::decode`]. Default: there is none.
    pub fn cross_attention(self) -> Self {
        Self { cross: true, ..self }
    }

    /// Computes the block with a mask: no position attends to positions whose `mask` `[B, T]` is 0. `None`
    /// masks nothing.
    pub fn masked(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
        self.parts(cx, x, mask, None)
    }

    /// Computes a block with [`cross_attention`](Self::cross_attention) to a context `[B, S, E]`, such as the
    /// result of an encoder. No position attends to places of the context whose `mask` `[B, S]` is 0.
    ///
    /// ```
    /// use unisono::{FromFn, TransformerBlock};
    ///
    /// let block = TransformerBlock::new(2).causal().cross_attention();
    /// let decoder = FromFn::new("decoder", move |cx, x| block.decode(cx, x, &x.slice(1, 0..3), None));
    /// ```
    pub fn decode(&self, cx: &mut Context, x: &Var, context: &Var, mask: Option<&Var>) -> Var {
        self.parts(cx, x, None, Some((context, mask)))
    }

    fn parts(
        &self,
        cx: &mut Context,
        x: &Var,
        mask: Option<&Var>,
        context: Option<(&Var, Option<&Var>)>,
    ) -> Var {
        let settings = [rate("dropout", self.dropout), not_negative("epsilon", self.epsilon.unwrap_or(0.0))];
        let fits = self.cross == context.is_some();
        let cross = (!fits).then(|| match self.cross {
            true => "with cross-attention is applied without a context: call `decode`".to_owned(),
            false => "without cross-attention is applied to a context: call `cross_attention`".to_owned(),
        });
        if !valid(self.name(), cx, settings.into_iter().chain([cross])) {
            return x.clone();
        }
        let attention = &self.attention;
        let x = self.part(cx, x, ["norm1", "dropout1"], |cx, x| {
            cx.within("self_attn", attention.name(), |cx| attention.attend(cx, x, x, mask))
        });
        let Some((context, mask)) = context else {
            return self.part(cx, &x, ["norm2", "dropout2"], |cx, x| self.dense(cx, x));
        };
        let attention = attention.across();
        let x = self.part(cx, &x, ["norm2", "dropout2"], |cx, x| {
            cx.within("multihead_attn", attention.name(), |cx| attention.attend(cx, x, context, mask))
        });
        self.part(cx, &x, ["norm3", "dropout3"], |cx, x| self.dense(cx, x))
    }

    /// Adds what a part of the block computes, and normalizes before or after.
    fn part(
        &self,
        cx: &mut Context,
        x: &Var,
        [norm, dropout]: [&str; 2],
        compute: impl FnOnce(&mut Context, &Var) -> Var,
    ) -> Var {
        let read = if self.norm_last { x.clone() } else { self.norm(cx, norm, x) };
        let mut found = compute(cx, &read);
        if self.dropout != 0.0 {
            found = cx.apply(dropout, &Dropout::new(self.dropout), &found);
        }
        let sum = x + found;
        if self.norm_last { self.norm(cx, norm, &sum) } else { sum }
    }

    fn norm(&self, cx: &mut Context, name: &str, x: &Var) -> Var {
        let epsilon = self.epsilon.unwrap_or(1e-5);
        match self.rms_norm {
            true => cx.apply(name, &RmsNorm::new().epsilon(epsilon), x),
            false => cx.apply(name, &LayerNorm::new().epsilon(epsilon), x),
        }
    }

    fn dense(&self, cx: &mut Context, x: &Var) -> Var {
        let width = x.dims().last().copied().unwrap_or(1);
        let layer = |units: usize| if self.no_bias { Dense::new(units).no_bias() } else { Dense::new(units) };
        let hidden = layer(self.hidden.unwrap_or(width.saturating_mul(4)));
        let inner = if self.gated {
            let gate = self.activation.apply(&cx.apply("gate", &hidden, x));
            gate * cx.apply("linear1", &hidden, x)
        } else {
            self.activation.apply(&cx.apply("linear1", &hidden, x))
        };
        cx.apply("linear2", &layer(width), &inner)
    }
}

impl Forward for TransformerBlock {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.masked(cx, x, None)
    }
}
