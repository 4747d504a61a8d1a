#![doc = include_str!("../README.md")]

mod disk;
pub mod inspect;
#[cfg(feature = "keras")]
mod keras;
mod model;
mod saver;
mod store;
mod tensors;
#[cfg(feature = "torch")]
mod torch;
#[cfg(any(feature = "torch", feature = "keras"))]
mod zipped;

pub use disk::write::{check_replaceable, create_dirs, write_model, write_model_of_format, write_whole};
pub use disk::{Disk, Sink, StdDisk, Syncing};
#[cfg(feature = "keras")]
pub use keras::{parse_keras, read_keras};
pub use model::export::{Export, Exported, description_path, export_model, read_export};
pub use model::keras::Keras;
pub use model::pattern::Pattern;
pub use model::plan::Plan;
pub use model::precision::{Rounded, Stored, WeightPrecision};
pub use model::quantized::scale_name;
pub use saver::report::Report;
pub use saver::{Saver, SaverOptions};
pub use store::contents::Contents;
pub use store::load::{Loaded, list, load, load_with, newest, newest_with};
pub use store::retention::{Best, Metric, Options};
pub use store::{Reopened, Saved, Store};
pub use tensors::bytes::FileBytes;
pub use tensors::digest::state_sha256;
pub use tensors::error::{Error, Result, Skipped};
pub use tensors::file::{TensorFile, parse_tensors, read_tensors};
pub use tensors::foreign::file_format;
pub use tensors::info::{Info, TensorDType};
pub use tensors::regular::{open_regular, open_to_append};
pub use tensors::report::{LoadReport, Mismatch};
pub use tensors::tensor::{Tensor, Tensors};
#[cfg(feature = "torch")]
pub use torch::{parse_torch, read_torch};
