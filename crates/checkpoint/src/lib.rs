#![doc = include_str!("../README.md")]

mod diff;
mod digest;
mod disk;
mod error;
mod export;
mod file;
mod float;
mod format;
mod header;
pub mod inspect;
mod layout;
mod load;
mod lock;
mod manifest;
mod names;
mod pattern;
mod plan;
mod report;
mod retention;
mod saver;
mod store;
mod target;
mod tensor;
mod upkeep;
mod write;
mod writer;

use serde_json::Value;

pub use digest::state_sha256;
pub use disk::{Disk, Sink, StdDisk, Syncing};
pub use error::{Error, Result, Skipped};
pub use export::{Export, Exported, WeightPrecision, export_model, read_export};
pub use file::{FileBytes, TensorFile, parse_tensors, read_tensors};
pub use layout::Keras;
pub use load::{Loaded, list, load, load_with, newest, newest_with};
pub use plan::Plan;
pub use report::{LoadReport, Mismatch};
pub use retention::{Best, Options};
pub use saver::{Report, Saver, SaverOptions};
pub use store::{Saved, Store};
pub use tensor::{Info, Tensor, TensorDType, Tensors};
pub use write::write_model;

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
