use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::{Dense, Dropout, LayerNorm, MultiHeadAttention};
use crate::{Context, Description, Layer};

/// A block of a transformer, norms first: x += attention(norm(x)); x += dense(gelu(dense(norm(x)))) over `[B, T, E]` (Xiong et
/// al. 2020; PyTorch's `TransformerEncoderLayer(norm_first=True, activation="gelu")`).
///
/// Parameters are those of its layers `norm1`, `self_attn`, `norm2`, `linear1` and `linear2`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerBlock {
    attention: MultiHeadAttention,
    hidden: Option<usize>,
    dropout: f32,
}

impl TransformerBlock {
    /// With so many heads, and four times the width between the dense layers.
    pub fn new(heads: usize) -> Self {
        Self { attention: MultiHeadAttention::new(heads), hidden: None, dropout: 0.0 }
    }

    /// Each place sees only itself and those before it.
    pub fn causal(mut self) -> Self {
        self.attention = self.attention.causal();
        self
    }

    /// The width between the dense layers.
    pub fn hidden(mut self, units: usize) -> Self {
        self.hidden = Some(units);
        self
    }

    /// Drops a share of what attention and dense layers add.
    pub fn dropout(mut self, rate: f32) -> Self {
        self.dropout = rate;
        self
    }

    /// The block with places whose `mask` `[B, T]` is 0 seen by none.
    pub fn masked(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
        let width = x.dims().last().copied().unwrap_or(1);
        let drop = |cx: &mut Context, name: &str, x: Var| match self.dropout {
            0.0 => x,
            rate => cx.apply(name, &Dropout::new(rate), &x),
        };
        let normed = cx.apply("norm1", &LayerNorm::new(), x);
        let attention = &self.attention;
        let found =
            cx.within("self_attn", attention.name(), |cx| attention.attend(cx, &normed, &normed, mask));
        let x = x + drop(cx, "dropout1", found);
        let normed = cx.apply("norm2", &LayerNorm::new(), &x);
        let inner = cx.apply("linear1", &Dense::new(self.hidden.unwrap_or(4 * width)), &normed).gelu();
        let outer = cx.apply("linear2", &Dense::new(width), &inner);
        x + drop(cx, "dropout2", outer)
    }
}

impl Layer for TransformerBlock {
    fn name(&self) -> &str {
        "transformer_block"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::TransformerBlock(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        self.masked(cx, x, None)
    }
}
