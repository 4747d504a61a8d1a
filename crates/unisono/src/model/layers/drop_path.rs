use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::settings::{rate, valid};
use crate::model::{Context, Forward, Layer};

/// Stochastic depth (Huang et al. 2016; timm's `DropPath`, torchvision's `StochasticDepth` in the mode
/// `row`): in training, a whole sample becomes 0 with probability `rate`, and the others are multiplied by
/// 1 / (1 - rate). In evaluation and prediction y = x. It is meant for the end of what a
/// [`Residual`](crate::Residual) goes around.
///
/// What is drawn depends on seed, layer, epoch and the sample's position in it, not on replicas, shards or
/// batches.
///
/// Shapes: `[B, ...]` to the same. It has no parameters.
///
/// Errors: the rate is not in [0, 1).
#[doc(alias("StochasticDepth", "drop_path"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropPath {
    rate: f32,
}

impl DropPath {
    /// Creates a layer that drops a sample with probability `rate`, 0 <= rate < 1.
    pub fn new(rate: f32) -> Self {
        Self { rate }
    }
}

impl Forward for DropPath {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if !valid(self.name(), cx, [rate("rate", self.rate)]) {
            return x.clone();
        }
        if !cx.is_training() || self.rate == 0.0 {
            return x.clone();
        }
        let each = cx.tape().constant(1.0).expand(Lead::Sample, &vec![1; x.dims().len()]);
        x * each.dropout(self.rate, &cx.stream())
    }
}
