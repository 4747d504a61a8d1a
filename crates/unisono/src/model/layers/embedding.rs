use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Var};

use super::settings::{positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Embedding: the row of a table for each id (PyTorch's and Keras's `Embedding`).
///
/// Ids that come from the model's input, whole or in slices, are checked in every batch: see
/// [`Context::limit_ids`]. An id that the model computes and that is outside of the table reads its last row.
/// The gradients of a repeated id are added in the order of (sample, position).
///
/// Shapes: `[B, ...]` of i32 to `[B, ..., width]`.
///
/// Parameters: `weight` `[rows, width]` (Default: normal with deviation 1).
///
/// Errors: the table has no rows or no width, or the input's dtype is not i32.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    rows: usize,
    width: usize,
    #[serde(skip, default = "start")]
    initializer: Initializer,
}

/// Returns the default initializer of the table.
fn start() -> Initializer {
    Initializer::Normal(1.0)
}

impl Embedding {
    /// Creates a layer with a table for ids in 0..rows, each of which has `width` features.
    pub fn new(rows: usize, width: usize) -> Self {
        Self { rows, width, initializer: start() }
    }

    /// Sets what the table starts with. Default: normal with deviation 1.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Forward for Embedding {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if x.ty().dtype != DType::I32 {
            cx.fail(self.name(), format!("needs ids of i32, got {}", x.ty()));
            return x.clone();
        }
        if !valid(self.name(), cx, [positive("rows", self.rows), positive("width", self.width)]) {
            return x.clone();
        }
        let weight = cx.parameter("weight", &[self.rows, self.width], self.initializer.clone());
        cx.limit_ids(x, self.rows);
        weight.embed(x)
    }
}
