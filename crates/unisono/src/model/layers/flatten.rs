use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::{Context, Forward};

/// Joins all axes of a sample into one (PyTorch's and Keras's `Flatten`).
///
/// Shapes: `[B, ...]` to `[B, n]`, for example `[B, 28, 28]` to `[B, 784]`. It has no parameters.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Flatten;

impl Forward for Flatten {
    fn forward(&self, _: &mut Context, x: &Var) -> Var {
        x.flatten()
    }
}
