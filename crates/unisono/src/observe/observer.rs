//! Observers, which are called as a run proceeds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use unisono_replica::ReplicaReport;

use crate::observe::logged::Logged;
use crate::{Epoch, Evaluation, OptimizerSettings, RunSettings, Summary};

/// Watches a run (Keras's `Callback` or Lightning's `Logger`, if they only watch). It is called in order, on
/// the trainer's thread, and cannot change the result. Progress bars and loggers are observers: `Progress`,
/// [`TensorBoard`](crate::TensorBoard), [`CsvLog`](crate::CsvLog), [`JsonLines`](crate::JsonLines) and
/// [`Plot`](crate::Plot).
///
/// An observer that panics is not called again. The fit ends after the current step, saves it, and returns
/// [`Error::Panic`](crate::Error::Panic), which names the observer. In a loop of your own, the next step
/// returns this error.
///
/// On several machines only the first rank calls its observers. If that rank is lost, the next one calls its
/// own from then on. They are told of a start, with the epochs so far.
pub trait Observer: Send {
    /// Returns whether every rank of a run on several machines calls its own observer. Default: `false`, only
    /// the first rank does.
    fn on_all_ranks(&self) -> bool {
        false
    }

    /// Returns the files that the observer writes and whose names it was given. A run is refused before its
    /// first step if two of its observers write one file, or if a file would replace a device, a pipe or a
    /// directory. Default: none.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Called when a fit begins, before its first step, also if all its epochs are already done. Default:
    /// does nothing.
    fn started(&mut self, _start: &Start<'_>) {}

    /// Called after each step. Default: does nothing.
    fn step(&mut self, _step: &Step) {}

    /// Called after each epoch. Default: does nothing.
    fn epoch(&mut self, _epoch: &Epoch) {}

    /// Called before [`Observer::epoch`] with what each replica did since the start of the run, or since it
    /// was resumed. `step` is the number of steps done. Default: does nothing.
    fn replicas(&mut self, _step: u64, _replicas: &[ReplicaReport]) {}

    /// Returns whether the observer wants the parameters after an epoch, counted from 0. Reading them from
    /// the devices takes time. Default: `false`.
    fn wants_weights(&self, _epoch: u32) -> bool {
        false
    }

    /// Called before [`Observer::epoch`] with the name and values of each parameter, if
    /// [`Observer::wants_weights`] returned true. `step` is the number of steps done. Default: does nothing.
    fn weights(&mut self, _step: u64, _weights: &[(&str, Vec<f32>)]) {}

    /// Called with each value that a program logs with [`Trainer::log`](crate::Trainer::log). `step` is the
    /// number of steps done. Default: does nothing.
    fn logged(&mut self, _step: u64, _tag: &str, _value: &Logged) {}

    /// Called when a checkpoint is complete. Default: does nothing.
    fn saved(&mut self, _path: &Path) {}

    /// Called when the run continues from a checkpoint. The steps from `step` on are repeated, even if an
    /// earlier process has already reported them. Default: does nothing.
    fn resumed(&mut self, _step: u64) {}

    /// Called when the run goes back to an earlier step because replicas were wrong. The steps from `step`
    /// on, and the epochs that ended with them, are repeated. Default: does nothing.
    fn rolled_back(&mut self, _step: u64) {}

    /// Receives a message for the user, for example that a replica left. Default: does nothing.
    fn note(&mut self, _text: &str) {}

    /// Called when a fit has made its last step, or has failed. Default: does nothing.
    fn ended(&mut self) {}

    /// Returns a problem of the observer itself, such as a full disk, once. The run continues, and all
    /// observers receive the problem as a note. Default: `None`.
    fn take_problem(&mut self) -> Option<String> {
        None
    }
}

/// What observers are told at the start of a fit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Start<'a> {
    /// The number of steps done since the run's start.
    pub step: u64,
    /// The number of samples of the present epoch that are done.
    pub done: u64,
    /// The epochs so far. After a resume it includes the earlier ones.
    pub history: &'a [Epoch],
    /// The names of the metrics whose results are numbers, in the trainer's order.
    pub metrics: &'a [String],
    /// The settings that the result of the run depends on.
    pub settings: &'a RunSettings,
    /// The settings of the optimizer.
    pub optimizer: &'a OptimizerSettings,
    /// The layers of the model.
    pub summary: &'a Summary,
}

impl Start<'_> {
    /// Returns the epochs so far: those of the history and, of those that an observer has seen, the ones of
    /// loops of your own, which no history has.
    pub(crate) fn epochs(&self, seen: Vec<Epoch>) -> Vec<Epoch> {
        let own: BTreeSet<u64> = self.history.iter().map(|epoch| epoch.steps).collect();
        let is_other = |epoch: &Epoch| epoch.steps <= self.step && !own.contains(&epoch.steps);
        let others = seen.into_iter().filter(is_other);
        let mut all: Vec<Epoch> = self.history.iter().cloned().chain(others).collect();
        all.sort_by_key(|epoch| epoch.steps);
        all
    }
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The step's number, from 0.
    pub step: u64,
    /// The step's epoch, from 0.
    pub epoch: u32,
    /// The number of epochs after which the fit ends.
    pub epochs: u32,
    /// The number of samples of the epoch that are done, this step's included.
    pub done: u64,
    /// The number of samples in the epoch.
    pub of: u64,
    /// The number of samples in the step.
    pub samples: u64,
    /// The learning rate of the step, as [`Trainer::learning_rate`](crate::Trainer::learning_rate) returns it
    /// before the step. `None` if the optimizer has no schedule.
    pub learning_rate: Option<f64>,
    /// The mean loss and metrics of the step.
    pub now: Evaluation,
    /// The mean loss and metrics of the epoch so far.
    pub so_far: Evaluation,
    /// Whether the step changed parameters. It does not if all weights are 0, or if a summed gradient is not
    /// finite and the loss scale is lowered.
    pub committed: bool,
}
