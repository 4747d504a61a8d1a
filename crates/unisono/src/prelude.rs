//! What a training program needs: `use unisono::prelude::*;`.
//!
//! ```no_run
//! use unisono::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let digits = Csv::new("digits.csv.gz").label(Column::Last).read()?;
//! let train = Loader::new(digits).shuffle(42);
//! let model = Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(10));
//! let builder = Trainer::builder(model).optimizer(AdamW::new(1e-3)).metric(Accuracy);
//! let mut trainer = builder.build(&train.fields()?)?;
//! trainer.fit(&train, None, 20)?;
//! # Ok(())
//! # }
//! ```

pub use unisono_checkpoint::WeightPrecision;
#[cfg(feature = "parquet")]
pub use unisono_data::Columnar;
#[cfg(feature = "pictures")]
pub use unisono_data::ImageFolder;
pub use unisono_data::{
    Batch, Buckets, Draws, Field, Loader, Memory, Sample, Sequences, Source, Tokens, Values, Width, split,
};
#[cfg(feature = "csv")]
pub use unisono_data::{Column, Csv, Missing};

pub use crate::callbacks::*;
pub use crate::model::layers::*;
pub use crate::model::{Context, FromFn, Initializer, Inputs, Layer, Model, Outputs};
pub use crate::objective::losses::*;
pub use crate::objective::metrics::*;
#[cfg(feature = "dashboard")]
pub use crate::observe::dashboard::Dashboard;
#[cfg(feature = "progress-bar")]
pub use crate::observe::progress::Progress;
pub use crate::observe::{csv_log::CsvLog, json_lines::JsonLines, plot::Plot, tensorboard::TensorBoard};
pub use crate::optimizers::*;
pub use crate::{
    BestBy, Builder, Callback, Control, DType, Epoch, Error, Evaluation, ExportedModel, History, Influence,
    LossScale, Observer, Phase, Precision, Prediction, Predictions, Predictor, Saving, Step, Stop, Tape,
    Trainer, Type, Var, balanced_class_weights,
};
