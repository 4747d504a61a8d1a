use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Var};

use crate::{Context, Description, Initializer, Layer};

/// A row of a table for each id: `[B, ...]` of i32 to `[B, ..., width]` (PyTorch's and Keras's `Embedding`).
///
/// Ids that come from the model's input, whole or in slices, are checked in every batch, see [`Context::limit_ids`]; an id that the
/// model computes and that is outside of the table reads its last row.
///
/// Parameters: `weight` `[rows, width]`, standard normal unless told. Repeated ids add up in the order of (sample, position).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    rows: usize,
    width: usize,
    #[serde(skip, default = "start")]
    initializer: Initializer,
}

/// What weights start with unless told.
fn start() -> Initializer {
    Initializer::Normal(1.0)
}

impl Embedding {
    /// A table for ids in 0..rows.
    pub fn new(rows: usize, width: usize) -> Self {
        Self { rows, width, initializer: start() }
    }

    /// What the table starts with.
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Layer for Embedding {
    fn name(&self) -> &str {
        "embedding"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::Embedding(self.clone()))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if x.ty().dtype != DType::I32 {
            cx.fail("embedding", format!("needs ids of i32, got {}", x.ty()));
            return x.clone();
        }
        let weight = cx.parameter("weight", &[self.rows, self.width], self.initializer.clone());
        cx.limit_ids(x, self.rows);
        weight.embed(x)
    }
}
