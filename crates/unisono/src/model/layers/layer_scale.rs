use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{finite, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// A factor of each feature that is learned, and small at first (Touvron et al. 2021; timm's `LayerScale`).
///
/// Shapes: `[B, ..., C]` to the same, or with [`channels_first`](Self::channels_first) `[B, C, ...]`.
///
/// Parameters: `gamma` `[C]`, which starts as the number that the layer is created with.
///
/// Errors: the input has no axis, the number is not finite.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerScale {
    start: f32,
    first: bool,
}

impl LayerScale {
    /// Creates a layer whose factors start as `start`, such as 1e-5, one for each element of the last axis.
    pub fn new(start: f32) -> Self {
        Self { start, first: false }
    }

    /// Has one factor for each element of the first axis after the batch, for images `[B, C, H, W]`.
    /// Default: for each of the last axis.
    pub fn channels_first(self) -> Self {
        Self { first: true, ..self }
    }
}

impl Forward for LayerScale {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let features = if self.first { x.dims().first() } else { x.dims().last() };
        let no_axis = features.is_none().then(|| format!("{} has no axis of features", x.ty()));
        if !valid(self.name(), cx, [finite("start", self.start), no_axis]) {
            return x.clone();
        }
        let features = features.copied().unwrap_or(1);
        let gamma = cx.parameter("gamma", &[features], Initializer::Constant(self.start));
        let behind = if self.first { x.dims().len() - 1 } else { 0 };
        x * gamma.reshape(&[&[features], &*vec![1; behind]].concat())
    }
}
