use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::{Context, Forward, Initializer};

/// y = scale x, one number for each feature.
///
/// Shapes: `[B, ...]` to `[B, ...]`.
///
/// Parameters: `scale`, with the shape of a sample (Default: ones).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scale;

impl Forward for Scale {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let scale = cx.parameter("scale", x.dims(), Initializer::Ones);
        x * &scale
    }
}
