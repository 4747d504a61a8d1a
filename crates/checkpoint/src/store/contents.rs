//! What a checkpoint holds.

use serde_json::Value;

use crate::tensors::digest::state_sha256;
use crate::tensors::tensor::Tensors;

/// What a checkpoint holds: all that the next step needs, in three files, or four.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Parameters and statistics under their plain names: `model.safetensors`.
    pub model: Tensors,
    /// What the optimizer keeps, and any other tensor state: `optimizer.safetensors`.
    pub optimizer: Tensors,
    /// What the lanes of the batch carry from step to step: `carries.safetensors`, which is there only if there are any.
    pub carries: Tensors,
    /// The rest: `trainer.json`. Keep numbers finite: JSON has no NaN or infinity, they would come back as null.
    pub trainer: Value,
}

impl Contents {
    /// [`state_sha256`] of the tensors, as the sections `model`, `optimizer` and, if there are any, `carries`, and of the
    /// position.
    pub fn state_sha256(&self, position: &[u8]) -> String {
        let carries = (!self.carries.is_empty()).then_some(("carries", &self.carries));
        let sections: Vec<_> =
            [("model", &self.model), ("optimizer", &self.optimizer)].into_iter().chain(carries).collect();
        state_sha256(&sections, position)
    }
}
