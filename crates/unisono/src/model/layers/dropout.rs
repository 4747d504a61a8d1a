use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{rate, valid};
use crate::model::{Context, Forward, Layer};

/// Dropout (Srivastava et al. 2014; Keras's and PyTorch's `Dropout`): in training, each element becomes 0
/// with probability `rate`, and the others are multiplied by 1 / (1 - rate). In evaluation and prediction y =
/// x.
///
/// The random draws depend on the seed, the layer, the epoch and the sample's position in it. They do not
/// depend on replicas, shards or batches.
///
/// Shapes: `[B, ...]` to the same. It has no parameters.
///
/// Errors: the rate is not in [0, 1).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    rate: f32,
}

impl Dropout {
    /// Creates a layer that drops an element with probability `rate`, 0 <= rate < 1.
    pub fn new(rate: f32) -> Self {
        Self { rate }
    }
}

impl Forward for Dropout {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if !valid(self.name(), cx, [rate("rate", self.rate)]) {
            return x.clone();
        }
        if cx.is_training() { x.dropout(self.rate, &cx.stream()) } else { x.clone() }
    }
}
