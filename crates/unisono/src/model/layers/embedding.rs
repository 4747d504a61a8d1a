use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Var};

use super::settings::{Problem, positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Embedding: the row of a table for each id (PyTorch's and Keras's `Embedding`).
///
/// Ids that come from the model's input, whole or in slices, are checked in every batch
/// ([`Context::limit_ids`] says which). If the model computes an id that is outside of the table, the layer
/// reads the last row. The gradients of a repeated id are added in the order of (sample, position).
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    padding_idx: Option<usize>,
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
        Self { rows, width, padding_idx: None, initializer: start() }
    }

    /// Sets the initial values of the table. Default: normal with deviation 1.
    pub fn initializer(self, initializer: Initializer) -> Self {
        Self { initializer, ..self }
    }

    /// Sets the id of padding (PyTorch's `padding_idx`): its row starts at 0 and has no gradient. A row that
    /// is loaded, or is among [`Initializer::Values`], keeps its values, except that an optimizer's weight
    /// decay shrinks them. Default: there is none.
    pub fn padding_idx(self, id: usize) -> Self {
        Self { padding_idx: Some(id), ..self }
    }

    /// Returns what the table starts with, with the row of padding.
    fn start(&self) -> Initializer {
        match (self.padding_idx, &self.initializer) {
            (None, own) | (_, own @ Initializer::Values(_)) => own.clone(),
            (Some(row), own) => Initializer::ZeroRow { row, others: Box::new(own.clone()) },
        }
    }

    /// Checks that padding has a row, whose number f32 tells from all others.
    fn padding(&self) -> Problem {
        let id = self.padding_idx?;
        let most = self.rows.min(1 << 24);
        (id >= most).then(|| format!("padding_idx is {id}, and must be below {most}"))
    }
}

impl Forward for Embedding {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if x.ty().dtype != DType::I32 {
            cx.fail(self.name(), format!("needs ids of i32, got {}", x.ty()));
            return x.clone();
        }
        let sizes = [positive("rows", self.rows), positive("width", self.width), self.padding()];
        if !valid(self.name(), cx, sizes) {
            return x.clone();
        }
        let weight = cx.kernel("weight", &[self.rows, self.width], 0, self.start());
        let y = weight.embed(x);
        match self.padding_idx.filter(|_| cx.is_training()) {
            Some(id) => {
                let is_padding = x.to_f32().eq_mask(&x.tape().constant(id as f32));
                is_padding.add_axis().select(&y.detach(), &y)
            }
            None => y,
        }
    }
}
