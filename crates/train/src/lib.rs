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
//!     let model = Sequential::new().add(Dense::new(64)).add(Relu).add(Dropout::new(0.2)).add(Dense::new(10));
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

mod best;
mod builder;
mod carries;
mod checkpoints;
mod class;
mod context;
mod description;
mod diagnose;
mod error;
mod export;
mod feed;
mod fit;
mod history;
mod ids;
mod initializer;
mod layer;
mod layers;
mod left;
mod load;
mod loss_scale;
mod losses;
mod memory;
mod metric;
mod number;
mod observer;
mod optimizers;
mod order;
mod programs;
mod progress;
mod report;
mod save;
mod stop;
mod summary;
mod tensors;
mod trace;
mod trainer;

pub use unisono_checkpoint as checkpoint;
pub use unisono_data as data;
pub use unisono_gpu as gpu;
pub use unisono_graph as graph;
pub use unisono_graph::{DType, Lead, Precision, Tape, Type, Var};
pub use unisono_replica::{Assignment, Class, ReplicaReport, machine, probe};

pub use builder::Builder;
pub use checkpoints::{BestBy, Saving};
pub use class::SavedClass;
pub use context::{Context, Mode, Parameter, SummaryLine};
pub use description::Description;
pub use error::Error;
pub use export::ExportedModel;
pub use history::{Epoch, Evaluation, History};
pub use initializer::Initializer;
pub use layer::{FromFn, Layer, Sequential};
pub use layers::functional;
pub use layers::{
    AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, Dense, Dropout, Elu, Embedding, Flatten, Gelu, GeluTanh,
    GlobalAvgPool2d, GroupNorm, Gru, LayerNorm, LeakyRelu, Lstm, MaxPool2d, MultiHeadAttention, Recompute,
    Relu, Residual, RmsNorm, Sigmoid, Silu, Size, Softmax, Softplus, Tanh, TransformerBlock,
};
pub use loss_scale::{LossScale, Scaling};
pub use losses::{
    BinaryCrossEntropyWithLogits, CrossEntropy, Huber, Loss, MeanAbsoluteError, MeanSquaredError,
};
pub use memory::Memory;
pub use metric::{Accuracy, BinaryAccuracy, Metric};
pub use observer::{Observer, Step};
pub use optimizers::{
    Adagrad, Adam, AdamW, ClipNorm, ClipValue, DecayExempt, Freeze, Gradient, Groups, Lamb, Lars, Optimizer,
    Plateau, RmsProp, Scalar, Schedule, Sgd, Update, scaled_lr, trace_update,
};
pub use programs::{INPUT, TARGET, WEIGHT};
pub use progress::Progress;
pub use report::Report;
pub use save::{Resumed, SavedRun};
pub use stop::Stop;
pub use summary::Summary;
pub use trainer::Trainer;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
