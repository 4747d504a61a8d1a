use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::{Context, Description, Layer};

/// All axes of a sample in one: `[B, 28, 28]` becomes `[B, 784]`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Flatten;

impl Layer for Flatten {
    fn name(&self) -> &str {
        "flatten"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::Flatten(*self))
    }
    fn forward(&self, _: &mut Context, x: &Var) -> Var {
        x.flatten()
    }
}
