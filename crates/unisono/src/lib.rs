//! Unisono trains one model on every GPU of a machine, and its answer does not depend on how many there were.
//!
//! ```no_run
//! use unisono::data::{Column, Csv, Loader, split};
//! use unisono::{Accuracy, AdamW, Dense, Dropout, Progress, Relu, Sequential, Trainer};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let digits = Csv::new("digits.csv.gz").label(Column::Last).read()?;
//!     let [train, held_out] = split(digits, 1437, 42)?;
//!     let (train, held_out) = (Loader::new(train).shuffle(42), Loader::new(held_out));
//!     let model = Sequential::new().add(Dense::new(64)).add(Relu).add(Dropout::new(0.2));
//!     let model = model.add(Dense::new(10));
//!     let mut trainer = Trainer::builder(model)
//!         .optimizer(AdamW::new(1e-3))
//!         .metric(Accuracy)
//!         .global_batch(64)
//!         .observer(Progress::new())
//!         .build(&train.fields()?)?;
//!     trainer.fit(&train, Some(&held_out), 20)?;
//!     println!("{}", trainer.state_sha256()?);
//!     Ok(())
//! }
//! ```

mod compile;
mod error;
mod model;
mod objective;
mod observe;
mod optimizers;
pub mod prelude;
mod run;
mod saving;
mod trainer;

pub use unisono_checkpoint as checkpoint;
pub use unisono_data as data;
pub use unisono_gpu as gpu;
pub use unisono_graph as graph;
pub use unisono_graph::{DType, Lead, Precision, Tape, Type, Var};
pub use unisono_replica::{Assignment, Class, ReplicaReport, machine, probe};

pub use compile::fields::{INPUT, TARGET, WEIGHT};
pub use compile::memory::MemoryEstimate;
pub use compile::programs::ProgramId;
pub use error::Error;
pub use model::context::{Context, Mode, Parameter, SummaryLine};
pub use model::description::Description;
pub use model::initializer::Initializer;
pub use model::layer::{FromFn, Layer, Sequential};
pub use model::layers::functional;
pub use model::layers::{
    AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, Dense, Dropout, Elu, Embedding, Flatten, Gelu, GeluTanh,
    GlobalAvgPool2d, GroupNorm, Gru, LayerNorm, LeakyRelu, Lstm, MaxPool2d, MultiHeadAttention, Recompute,
    Relu, Residual, RmsNorm, Sigmoid, Silu, Size, Softmax, Softplus, Tanh, TransformerBlock,
};
pub use objective::history::{Epoch, Evaluation, History};
pub use objective::losses::{
    BinaryCrossEntropyWithLogits, CrossEntropy, Huber, Loss, MeanAbsoluteError, MeanSquaredError,
};
pub use objective::metric::{Accuracy, BinaryAccuracy, Metric};
pub use observe::observer::{Observer, Step};
pub use observe::progress::Progress;
pub use observe::report::Report;
pub use observe::summary::Summary;
pub use optimizers::{
    Adagrad, Adam, AdamW, ClipNorm, ClipValue, DecayExempt, Freeze, Gradient, Groups, Lamb, Lars, Optimizer,
    Plateau, RmsProp, Scalar, Schedule, Sgd, Update, scaled_lr, trace_update,
};
pub use run::classes::{SavedClass, SavedClasses};
pub use run::loss_scale::{LossScale, Scaling};
pub use run::settings::{GLOBAL_BATCH, RunSettings, SHARDS};
pub use run::state::SavedRun;
pub use run::stop::Stop;
pub use saving::policy::{BestBy, Saving};
pub use trainer::Trainer;
pub use trainer::builder::Builder;
pub use trainer::export::ExportedModel;
pub use trainer::resume::Resumed;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
