#![doc = include_str!("../README.md")]

mod callbacks;
mod compile;
mod error;
mod identity;
mod model;
mod objective;
mod observe;
mod onnx;
mod optimizers;
mod predictor;
pub mod prelude;
mod protobuf;
mod renamed;
mod run;
mod saving;
mod trainer;

pub use unisono_checkpoint as checkpoint;
pub use unisono_cluster as cluster;
pub use unisono_cluster::Cluster;
#[cfg(feature = "mpi")]
pub use unisono_cluster_mpi as mpi;
pub use unisono_data as data;
pub use unisono_gpu as gpu;
pub use unisono_gpu::Arithmetic;
pub use unisono_graph as graph;
pub use unisono_graph::{DType, Lead, Precision, Tape, Type, Var};
pub use unisono_replica::{
    ARITHMETIC, Assignment, AuditReport, Audits, Class, ReplicaReport, Rounding, WitnessReport, cpus_of,
    machine, probe,
};

pub use callbacks::*;
pub use compile::fields::WEIGHT;
pub use compile::memory::MemoryEstimate;
pub use compile::objective::TARGET;
pub use compile::phases::Phase;
pub use compile::programs::ProgramId;
pub use error::Error;
pub use model::functional::{INPUT, OUTPUT};
pub use model::layers::*;
pub use model::{Context, FromFn, Initializer, Inputs, Layer, Mode, Model, Outputs, Parameter, SummaryLine};
pub use objective::losses::*;
pub use objective::metrics::*;
pub use objective::{Epoch, Evaluation, History};
pub use observe::csv_log::CsvLog;
#[cfg(feature = "dashboard")]
pub use observe::dashboard::Dashboard;
pub use observe::json_lines::JsonLines;
pub use observe::logged::{Logged, LoggedImage};
pub use observe::machines::MachineReport;
pub use observe::observer::{Observer, Start, Step};
pub use observe::plot::Plot;
#[cfg(feature = "progress-bar")]
pub use observe::progress::Progress;
pub use observe::report::Report;
pub use observe::summary::Summary;
pub use observe::tensorboard::TensorBoard;
pub use optimizers::*;
pub use predictor::Predictor;
pub use predictor::builder::PredictorBuilder;
pub use predictor::report::PredictorReport;
pub use predictor::rows::{Row, Rows};
pub use predictor::server::{Client, Server};
#[expect(deprecated, reason = "former names")]
pub use renamed::World;
pub use run::ancestry::Ancestor;
pub use run::classes::{SavedClass, SavedClasses};
pub use run::control::Stopped;
pub use run::loss_scale::{LossScale, Scaling};
pub use run::settings::{GLOBAL_BATCH, RunSettings, SHARDS};
pub use run::state::SavedRun;
pub use run::stop::Stop;
pub use saving::machines::{dir_of_rank, share_newest};
pub use saving::policy::{BestBy, Saving};
pub use trainer::Trainer;
pub use trainer::builder::Builder;
pub use trainer::callback::{Callback, Influence};
pub use trainer::control::Control;
pub use trainer::evaluate::{Prediction, Predictions};
pub use trainer::export::ExportedModel;
pub use trainer::identity::Identity;
pub use trainer::precision::PrecisionReport;
pub use trainer::recipe::balanced_class_weights;
pub use trainer::resume::Resumed;
pub use trainer::witness::Witness;
