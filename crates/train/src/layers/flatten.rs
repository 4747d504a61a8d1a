use unisono_graph::Var;

use crate::{Context, Layer};

/// All axes of a sample in one: `[B, 28, 28]` becomes `[B, 784]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Layer for Flatten {
    fn name(&self) -> &str {
        "flatten"
    }
    fn forward(&self, _: &mut Context, x: &Var) -> Var {
        x.flatten()
    }
}
