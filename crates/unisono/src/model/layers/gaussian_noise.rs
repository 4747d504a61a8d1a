use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::{not_negative, valid};
use crate::model::{Context, Forward, Layer};

/// Normal noise with mean 0 that is added in training (Keras's `GaussianNoise`). In evaluation and
/// prediction y = x.
///
/// The random draws depend on the seed, the layer, the epoch and the sample's position in it. They do not
/// depend on replicas, shards or batches.
///
/// Shapes: `[B, ...]` to the same. It has no parameters.
///
/// Errors: the deviation is negative or not finite.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianNoise {
    deviation: f32,
}

impl GaussianNoise {
    /// Creates a layer whose noise has this standard deviation.
    pub fn new(deviation: f32) -> Self {
        Self { deviation }
    }
}

impl Forward for GaussianNoise {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if !valid(self.name(), cx, [not_negative("deviation", self.deviation)]) {
            return x.clone();
        }
        if !cx.is_training() || self.deviation == 0.0 {
            return x.clone();
        }
        x + x.normal_noise(&cx.stream()) * self.deviation
    }
}
