//! The trainer: it runs steps, evaluations and predictions on all replicas, and saves and resumes the run.
//!
//! There is a file for each verb: `builder` has the settings and `build` builds a trainer of them, `fit`
//! trains over epochs, `step` does one step, `evaluate` evaluates and predicts, `save` and `resume` are about
//! checkpoints, `identity` about what makes a run this run, `load` and `export` about weights, `join` about
//! replicas that come and go, `agree` about several machines, `callback` and `control` about code that steers
//! a run, `tell` about what observers hear, `trust` about the way back after a replica was wrong, `inspect`
//! about what a user can ask, `advise`, `guess`, `effects` and `repeated` about what is noted of a fit,
//! `averages` about moving averages of weights, `precision` about weights of fewer bits, `lbfgs` about steps
//! on all samples, `replay` about a replay buffer, `dry_run` about trying a run out.
//!
//! The others are parts of these: `start` and `replica_set` are about the replicas, `recipe` has more
//! settings, `rows` and `agree_on_data` share out batches and hashes of data among machines, `lengths`
//! compiles for samples of another length, `tensors` has the tensors on the devices by name, `diagnose`
//! finds where a number went bad.

mod advise;
mod agree;
mod agree_on_data;
mod averages;
pub(crate) mod build;
pub(crate) mod builder;
pub(crate) mod callback;
pub(crate) mod control;
mod diagnose;
mod dry_run;
mod effects;
pub(crate) mod evaluate;
pub(crate) mod export;
mod first_notes;
mod fit;
mod guess;
pub(crate) mod held_out;
pub(crate) mod identity;
mod inspect;
mod join;
mod lbfgs;
mod lengths;
mod load;
mod notify;
pub(crate) mod precision;
pub(crate) mod recipe;
mod repeated;
mod replay;
mod replica_set;
pub(crate) mod resume;
mod rows;
mod save;
mod start;
mod step;
mod tensors;
mod trust;
pub(crate) mod witness;

use crate::compile::plan::Plan;
use crate::observe::monitor::Monitor;
use crate::run::carries::Carries;
use crate::run::state::RunState;
use crate::saving::checkpoints::Checkpoints;
use crate::trainer::callback::Callbacks;
use crate::trainer::held_out::KnownData;
use crate::trainer::identity::DataHash;
use crate::trainer::replica_set::ReplicaSet;
use crate::trainer::trust::Trust;

/// Trains a model on all replicas, evaluates it, predicts with it, and saves and resumes the run (Keras's
/// `Model.fit`, Lightning's `Trainer`). [`Trainer::builder`] sets one up.
pub struct Trainer {
    /// What is trained, as it was compiled.
    plan: Plan,
    /// Who computes.
    replica_set: ReplicaSet,
    /// Everything that a checkpoint saves beside the tensors on the devices.
    state: RunState,
    /// What samples carry from batch to batch in evaluation and prediction.
    using: Carries,
    /// Where the run is saved, if it is.
    saver: Option<Checkpoints>,
    /// Who watches.
    monitor: Monitor,
    /// Who may change how the run goes on.
    callbacks: Callbacks,
    /// The hash of the data, which is computed beside the training.
    data_hash: DataHash,
    /// What is known of the data that the trainer was given.
    known_data: KnownData,
    /// How far the run is trusted.
    trust: Trust,
    /// The step at which replicas were last found to differ without it being known which is wrong. Only an
    /// audit of a later step clears it.
    doubted: Option<u64>,
}
