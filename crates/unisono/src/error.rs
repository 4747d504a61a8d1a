//! The errors of the facade, as one enum.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use unisono_cluster::ClusterError;
use unisono_data::BoxError;
use unisono_replica::ReplicaError;

/// Any error of the facade. `Debug` prints the message too, so that a `main` that returns the error shows it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, its loss and its optimizer do not fit together.
    #[error(transparent)]
    Model(#[from] unisono_graph::GraphError),
    /// A setting makes no sense.
    #[error("{setting}: {problem}")]
    Setting {
        /// The setting's name, as the builder or the command line calls it.
        setting: &'static str,
        /// What is wrong with the setting.
        problem: String,
    },
    /// A step needs more memory than there is, or larger tensors than the adapter allows.
    #[error(
        "{adapter}: a step of {global_batch} samples does not fit: {problem}; largest tensors: {largest}; {advice}"
    )]
    TooLarge {
        /// The adapter's name.
        adapter: String,
        /// The number of samples in the step.
        global_batch: usize,
        /// What the step needs, and what there is.
        problem: String,
        /// The largest tensors with their sizes.
        largest: String,
        /// Advice: a global batch that would fit.
        advice: String,
    },
    /// Mixed precision was requested, but an adapter has no 16-bit floats.
    #[error(
        "{adapter} has no 16-bit floats in shaders (shader-f16), which mixed precision needs: train in f32, or on another \
         adapter"
    )]
    NoF16 {
        /// The adapter's name.
        adapter: String,
    },
    /// The fields of a batch differ from those that the model was built for.
    #[error("field {field:?}: expected {expected}, got {got}")]
    Field {
        /// The field's name.
        field: String,
        /// What the model expects.
        expected: String,
        /// What the data have.
        got: String,
    },
    /// A sample cannot be trained on.
    #[error("{sample} (epoch {}, position {position}): {problem}", .epoch + 1)]
    Sample {
        /// The epoch, counted from 0. Messages count from 1.
        epoch: u32,
        /// The sample's position in the epoch.
        position: u64,
        /// The sample's name in its source.
        sample: String,
        /// What is wrong with the sample.
        problem: String,
    },
    /// A [`Server`](crate::Server) could not predict the batch that contains this row. Every row of the batch
    /// gets this error.
    #[error(transparent)]
    Served(Arc<Error>),
    /// The validation data do not fit the model, or have a bad sample.
    #[error("validation data: {0}")]
    Validation(Box<Error>),
    /// The loss or a gradient is not finite, and the step changed nothing.
    #[error("step {step}: {what} is not finite{}{}", first_bad(what, tensor), later(*.step, what))]
    NotFinite {
        /// The number of the step.
        step: u64,
        /// What turned NaN or infinite.
        what: String,
        /// The first tensor of the forward pass, or the gradient, that is not finite.
        tensor: String,
    },
    /// A step made a value of the state infinite or NaN. The state has changed. The trainer does not use it
    /// until it is resumed from a checkpoint.
    #[error(
        "step {step}: the new value of {tensor} is not finite{}, and the state has changed: resume from a checkpoint, or build \
         a new trainer",
        and_more(*.more)
    )]
    StateNotFinite {
        /// The number of the step.
        step: u64,
        /// The first tensor of the state that is not finite.
        tensor: String,
        /// The number of other tensors that are not finite either.
        more: usize,
    },
    /// A checkpoint belongs to another run, or cannot be read by this version.
    #[error("{}: {problem}", path.display())]
    Resume {
        /// The checkpoint's directory, or the file.
        path: PathBuf,
        /// What differs or cannot be read.
        problem: String,
    },
    /// The chosen adapters would not give the same bits.
    #[error(
        "adapters of different numeric classes: {}; leave one out, or allow mixed classes (--mixed, Builder::mixed): \
         the result is then reproducible only on the same mix, if no replica is lost",
        classes.join(", ")
    )]
    Mixture {
        /// Each adapter with its class.
        classes: Vec<String>,
    },
    /// An adapter of another numeric class cannot join a run that was started on one class.
    #[error(
        "adapters of different numeric classes: {}; a run that was started on one class accepts no other, even if mixed classes \
         are allowed: start it on a mix, or let an adapter of its own class join",
        classes.join(", ")
    )]
    JoinsOtherClass {
        /// Each adapter with its class.
        classes: Vec<String>,
    },
    /// All replicas have left. The run is over, and can be resumed from its newest checkpoint.
    #[error("{left}; {}", newest(*.checkpoint))]
    NoneLeft {
        /// Which replicas left, when and why.
        left: ReplicaError,
        /// The step of the newest checkpoint, if there is one.
        checkpoint: Option<u64>,
    },
    /// Replicas were found to be wrong, and the run went back to a trusted state. A fit continues by itself.
    /// Your own training loop has to continue with the batches from [`crate::Trainer::position`].
    #[error("{why}; the run is back at step {step}")]
    RolledBack {
        /// What was found, and which replicas are wrong.
        why: String,
        /// The number of steps done.
        step: u64,
    },
    /// The steps after the last trusted state may be wrong. The trainer is back at that state, and later
    /// checkpoints are set aside.
    #[error(
        "{why}; the run cannot go on, and is back at step {step}: find the device that is wrong, and resume without it"
    )]
    Refused {
        /// What was found.
        why: String,
        /// The number of steps done.
        step: u64,
    },
    /// The state may be wrong, and there is no trusted state to go back to. The trainer does nothing more
    /// until a run is resumed or weights are loaded.
    #[error("the state may be wrong: {why}")]
    Untrusted {
        /// What was found.
        why: String,
    },
    /// A trace could not be written.
    #[error("trace {}: {source}", path.display())]
    Trace {
        /// The trace's file.
        path: PathBuf,
        /// Why it could not be written.
        source: std::io::Error,
    },
    /// The last step of a fit, or of a run that was asked to stop, could not be saved. The trainer still
    /// holds its state, which can be saved to another directory or exported.
    #[error("{}: the last step, {step}, is not saved: {reason}", dir.display())]
    NotSaved {
        /// The directory that the run is saved to.
        dir: PathBuf,
        /// The step.
        step: u64,
        /// Why it could not be saved.
        reason: unisono_checkpoint::Error,
    },
    /// An evaluation or a prediction ended early because the run was asked to stop, see
    /// [`Trainer::stop_on`](crate::Trainer::stop_on), or a resumed run could not be saved because its data
    /// were not hashed by then. A fit that is asked to stop returns no error.
    #[error("stopped on request")]
    Stopped,
    /// The input pipeline failed.
    #[error(transparent)]
    Data(unisono_data::DataError),
    /// A callback failed by an error of its own ([`Error::other`]), or panicked.
    #[error("callback {callback:?}: {cause}")]
    Callback {
        /// The callback's name.
        callback: String,
        /// Why it failed.
        cause: BoxError,
    },
    /// Code of a program's own panicked where the library called it: an observer, a metric, an optimizer.
    #[error("{what} panicked: {message}")]
    Panic {
        /// What panicked, and where.
        what: String,
        /// The panic's message.
        message: String,
    },
    /// An error of a program's own, made by [`Error::other`].
    #[error(transparent)]
    Other(BoxError),
    /// An adapter or a device failed.
    #[error(transparent)]
    Gpu(#[from] unisono_gpu::GpuError),
    /// The machines of the run could not do something together, or one of them ended it.
    #[error(transparent)]
    Cluster(#[from] unisono_cluster::ClusterError),
    /// This machine's own error, while other machines of the run have another one or none.
    #[error(transparent)]
    Here(Box<Error>),
    /// The replicas failed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The checkpoints failed.
    #[error(transparent)]
    Checkpoint(#[from] unisono_checkpoint::Error),
}

impl From<unisono_data::DataError> for Error {
    fn from(error: unisono_data::DataError) -> Self {
        match error {
            unisono_data::DataError::Stopped => Self::Stopped,
            error => Self::Data(error),
        }
    }
}

/// Prints what `Display` prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns whether resident memory was lost with a replica, so that it has to be filled again: see
    /// [`Predictor::drop_residents`](crate::Predictor::drop_residents).
    pub fn lost_residents(&self) -> bool {
        match self {
            Self::Served(error) => error.lost_residents(),
            _ => matches!(self, Self::Replica(ReplicaError::ResidentsLost)),
        }
    }

    /// Makes an error from a cause of your own, such as an I/O error in a callback. The error of the callback
    /// then contains it.
    ///
    /// ```
    /// use unisono::{Error, Influence, on_epoch};
    ///
    /// let writes = on_epoch("writes", Influence::None, |epoch, _| {
    ///     std::fs::write("loss.txt", epoch.train.loss.to_string()).map_err(Error::other)
    /// });
    /// assert_eq!(Error::other("no more time").to_string(), "no more time");
    /// ```
    pub fn other(cause: impl Into<BoxError>) -> Self {
        Self::Other(cause.into())
    }

    /// Makes the error of a setting.
    pub(crate) fn setting(setting: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting { setting, problem: problem.into() }
    }

    /// Marks an error of the data as one of the samples held out.
    pub(crate) fn of_validation(self) -> Self {
        match self {
            Self::Data(_) | Self::Field { .. } | Self::Sample { .. } => Self::Validation(Box::new(self)),
            other => other,
        }
    }

    /// Returns whether the same run would be refused again: its settings, its model, its checkpoint or its
    /// machines do not fit each other, on this rank or on another. No device or machine was lost, so starting
    /// the run again does not help.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Here(error) => error.is_refusal(),
            Self::Served(error) => error.is_refusal(),
            Self::Setting { .. } | Self::Resume { .. } | Self::Model(_) | Self::TooLarge { .. } => true,
            Self::Checkpoint(error) => matches!(error, unisono_checkpoint::Error::Record { .. }),
            Self::Cluster(error) | Self::Replica(ReplicaError::Cluster(error)) => {
                matches!(error, ClusterError::Differs(_) | ClusterError::Other { is_refusal: true, .. })
            }
            _ => false,
        }
    }

    /// Returns whether this is an error of the data or of their numbers, after which the replicas hold the
    /// state of the step before. Where another rank has the error, that is for all ranks to say.
    pub(crate) fn leaves_state_whole(&self) -> bool {
        if let Self::Here(error) = self {
            return error.leaves_state_whole();
        }
        matches!(
            self,
            Self::Data(_)
                | Self::Field { .. }
                | Self::Sample { .. }
                | Self::Setting { .. }
                | Self::Callback { .. }
                | Self::Panic { .. }
                | Self::Other(_)
                | Self::Validation(_)
                | Self::NotFinite { .. }
                | Self::Replica(ReplicaError::NotFinite { .. } | ReplicaError::Rest { .. })
                | Self::Cluster(ClusterError::Other { .. })
                | Self::Replica(ReplicaError::Cluster(ClusterError::Other { .. }))
        )
    }
}

/// Calls code of a program's own. A panic in it becomes its text: libraries do not unwind into programs.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "no message".into())
    })
}

/// Names the first bad tensor, unless it is the one that was named already.
fn first_bad(what: &str, tensor: &str) -> String {
    if what == tensor { String::new() } else { format!("; first bad tensor: {tensor}") }
}

/// Says what most likely made a loss or a gradient of a later step too large.
fn later(step: u64, what: &str) -> &'static str {
    let is_trained = what.starts_with("the loss") || what.starts_with("the gradient");
    match step {
        1.. if is_trained => {
            "; steps before it were finite, so a smaller learning rate or Chain::clip_norm most likely helps"
        }
        _ => "",
    }
}

/// Counts the other tensors.
fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" ({more} more are not finite either)") }
}

/// Says which checkpoint a run can go on from.
fn newest(checkpoint: Option<u64>) -> String {
    checkpoint.map_or_else(
        || "there is no checkpoint to resume from".to_owned(),
        |step| format!("the newest checkpoint is that of step {step}: resume from it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_the_message() {
        let error = Error::setting("shards", "0 is not in 1..=64");
        assert_eq!(format!("{error:?}"), "shards: 0 is not in 1..=64");
        let main =
            || -> Result<(), Box<dyn std::error::Error>> { Err(Error::setting("seed", "none").into()) };
        assert_eq!(format!("Error: {:?}", main().unwrap_err()), "Error: seed: none");
    }
}
