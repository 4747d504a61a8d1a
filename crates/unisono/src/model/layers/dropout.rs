use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::{Context, Description, Layer};

/// Drops elements of each sample at random while training, and scales the others by 1 / (1 - rate) (Keras's and PyTorch's
/// `Dropout`). The draws are the sample's own: they do not depend on replicas, shards or batches.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    rate: f32,
}

impl Dropout {
    /// Drops a share `rate` of the elements; 0 <= rate < 1.
    pub fn new(rate: f32) -> Self {
        Self { rate }
    }
}

impl Layer for Dropout {
    fn name(&self) -> &str {
        "dropout"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::Dropout(*self))
    }
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if cx.is_training() { x.dropout(self.rate, &cx.path()) } else { x.clone() }
    }
}
