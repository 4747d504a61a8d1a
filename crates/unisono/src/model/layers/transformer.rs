use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{rate, valid};
use super::{Dense, Dropout, LayerNorm, MultiHeadAttention};
use crate::model::{Context, Forward, Layer};

/// A transformer block with layer normalization first (Xiong et al. 2020; PyTorch's
/// `TransformerEncoderLayer(norm_first=True, activation="gelu")`): x += attention(norm1(x)), then
/// x += linear2(gelu(linear1(norm2(x)))).
///
/// Shapes: `[B, T, E]` to `[B, T, E]`.
///
/// Parameters: those of its layers `norm1` and `norm2` ([`LayerNorm`]), `self_attn` ([`MultiHeadAttention`]),
/// `linear1` and `linear2` ([`Dense`], `[hidden, E]` and `[E, hidden]`), with their defaults.
///
/// [`with_context`](Self::with_context) also attends to what an encoder has read, which makes it a decoder's
/// block.
///
/// Errors: those of its layers.
#[doc(alias("TransformerEncoderLayer", "TransformerDecoderLayer"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerBlock {
    attention: MultiHeadAttention,
    hidden: Option<usize>,
    dropout: f32,
}

impl TransformerBlock {
    /// Creates a block with this number of heads, which must divide the width E. By default the attention is
    /// not causal, the hidden width is 4 E, and there is no dropout.
    pub fn new(heads: usize) -> Self {
        Self { attention: MultiHeadAttention::new(heads), hidden: None, dropout: 0.0 }
    }

    /// Makes the attention causal: each position attends to itself and to those before it. Default: to all
    /// positions.
    pub fn causal(mut self) -> Self {
        self.attention = self.attention.causal();
        self
    }

    /// Sets the number of heads of keys and values, which must divide the number of heads (grouped-query
    /// attention): see [`MultiHeadAttention::kv_heads`]. Default: the number of heads.
    pub fn kv_heads(mut self, heads: usize) -> Self {
        self.attention = self.attention.kv_heads(heads);
        self
    }

    /// Rotates queries and keys by their positions, with the base 10,000: see [`MultiHeadAttention::rotary`].
    /// Default: positions have no effect.
    pub fn rotary(mut self) -> Self {
        self.attention = self.attention.rotary();
        self
    }

    /// Rotates queries and keys as [`TransformerBlock::rotary`] does, with this base, which must be above 1.
    pub fn rotary_base(mut self, base: f32) -> Self {
        self.attention = self.attention.rotary_base(base);
        self
    }

    /// Sets the number of features between the two dense layers. Default: 4 E.
    pub fn hidden(mut self, units: usize) -> Self {
        self.hidden = Some(units);
        self
    }

    /// Sets the dropout rate, in training, for the outputs of attention and dense layers. Default: 0.
    pub fn dropout(mut self, rate: f32) -> Self {
        self.dropout = rate;
        self
    }

    /// Computes the block with a mask: no position attends to positions whose `mask` `[B, T]` is 0. `None`
    /// masks nothing.
    pub fn masked(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
        if !valid(self.name(), cx, [rate("dropout", self.dropout)]) {
            return x.clone();
        }
        let x = self.attended(cx, x, mask);
        self.fed(cx, &x, 2)
    }

    /// Computes the block as a decoder's (PyTorch's `TransformerDecoderLayer(norm_first=True,
    /// activation="gelu")`): between the two steps, each position of `x` `[B, T, E]` attends to those of
    /// `context` `[B, S, E]`, such as what an encoder has read: x += cross_attention(norm2(x), context).
    /// Returns `[B, T, E]`.
    ///
    /// Positions of the context whose `mask` `[B, S]` is 0 are padding, to which no position attends. Make
    /// the block [`causal`](Self::causal) if it writes a text. The attention to the context is neither causal
    /// nor rotated. Its parameters are those of the layer `multihead_attn` ([`MultiHeadAttention`]), and the
    /// norm of the last step is `norm3`.
    ///
    /// Errors: those of the layers.
    ///
    /// ```
    /// use unisono::{Dense, Embedding, Model, Outputs, TransformerBlock};
    ///
    /// let encoder = TransformerBlock::new(4).rotary();
    /// let decoder = encoder.causal();
    /// let translate = Model::new(move |cx, x| {
    ///     let source = cx.apply("source", &Embedding::new(900, 64), &x["source"]);
    ///     let read = cx.apply("encoder", &encoder, &source);
    ///     let target = cx.apply("target", &Embedding::new(800, 64), &x["target"]);
    ///     let written = cx.within("decoder", "transformer_block", |cx| {
    ///         decoder.with_context(cx, &target, &read, None)
    ///     });
    ///     Outputs::new().with("words", &cx.apply("words", &Dense::new(800), &written))
    /// });
    /// ```
    #[doc(alias = "TransformerDecoderLayer")]
    pub fn with_context(&self, cx: &mut Context, x: &Var, context: &Var, mask: Option<&Var>) -> Var {
        if !valid(self.name(), cx, [rate("dropout", self.dropout)]) {
            return x.clone();
        }
        let x = self.attended(cx, x, None);
        let normed = cx.apply("norm2", &LayerNorm::new(), &x);
        let across = self.attention.across();
        let found =
            cx.within("multihead_attn", across.name(), |cx| across.attend(cx, &normed, context, mask));
        let x = x + self.dropped(cx, "dropout2", found);
        self.fed(cx, &x, 3)
    }

    /// Traces the step in which positions attend to each other.
    fn attended(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
        let normed = cx.apply("norm1", &LayerNorm::new(), x);
        let attention = &self.attention;
        let found =
            cx.within("self_attn", attention.name(), |cx| attention.attend(cx, &normed, &normed, mask));
        x + self.dropped(cx, "dropout1", found)
    }

    /// Traces the step with the two dense layers, the block's step `number`, counted from 1.
    fn fed(&self, cx: &mut Context, x: &Var, number: usize) -> Var {
        let width = x.dims().last().copied().unwrap_or(1);
        let normed = cx.apply(&format!("norm{number}"), &LayerNorm::new(), x);
        let inner = cx.apply("linear1", &Dense::new(self.hidden.unwrap_or(4 * width)), &normed).gelu();
        let outer = cx.apply("linear2", &Dense::new(width), &inner);
        x + self.dropped(cx, &format!("dropout{number}"), outer)
    }

    fn dropped(&self, cx: &mut Context, name: &str, x: Var) -> Var {
        match self.dropout {
            0.0 => x,
            rate => cx.apply(name, &Dropout::new(rate), &x),
        }
    }
}

impl Forward for TransformerBlock {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.masked(cx, x, None)
    }
}
