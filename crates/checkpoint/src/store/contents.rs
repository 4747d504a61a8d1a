//! The contents of a checkpoint.

use serde_json::Value;

use crate::tensors::digest::state_sha256;
use crate::tensors::tensor::Tensors;

/// The contents of a checkpoint: all that the next step needs, in three files, or four.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// The parameters and statistics under their plain names, in `model.safetensors`.
    pub model: Tensors,
    /// The optimizer's state, and any other tensor state, in `optimizer.safetensors`.
    pub optimizer: Tensors,
    /// The tensors of the trainer's own state, such as what the lanes of the batch carry from step to step,
    /// in `carries.safetensors`. The file exists only if there are any.
    pub carries: Tensors,
    /// All else, in `trainer.json`. Numbers must be finite: JSON has no NaN or infinity, which would come
    /// back as null.
    pub trainer: Value,
}

impl Contents {
    /// Returns the [`state_sha256`] of the tensors and of the position. The sections are `model`, `optimizer`
    /// and, if there are any, `carries`.
    pub fn state_sha256(&self, position: &[u8]) -> String {
        let carries = (!self.carries.is_empty()).then_some(("carries", &self.carries));
        let sections: Vec<_> =
            [("model", &self.model), ("optimizer", &self.optimizer)].into_iter().chain(carries).collect();
        state_sha256(&sections, position)
    }
}
