use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::{Context, Forward, Initializer, Layer};

/// y = x + sin(a x)^2 / a with learned frequencies a (Ziyin et al. 2020: the activation snake).
///
/// Shapes: `[B, ..., n]` to `[B, ..., n]`.
///
/// Parameters: `weight` (a) `[frequencies]` (Default: ones).
///
/// Errors: there are several frequencies, and the last axis does not have as many features.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snake {
    frequencies: usize,
    #[serde(skip, default = "start")]
    initializer: Initializer,
}

/// Returns the default initializer of the frequencies.
fn start() -> Initializer {
    Initializer::Ones
}

impl Snake {
    /// Creates a layer with this number of frequencies: one for all features, or one for each.
    pub fn new(frequencies: usize) -> Self {
        Self { frequencies, initializer: start() }
    }

    /// Sets what the frequencies start with. Default: ones.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Forward for Snake {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if self.frequencies != 1 && x.dims().last() != Some(&self.frequencies) {
            cx.fail(self.name(), format!("{} frequencies for {}", self.frequencies, x.ty()));
            return x.clone();
        }
        let frequency = cx.parameter("weight", &[self.frequencies], self.initializer.clone());
        x + (x * &frequency).sin().square() / frequency
    }
}
