//! Observers, which are called as a run proceeds.

use std::collections::BTreeSet;
use std::path::Path;

use unisono_replica::ReplicaReport;

use crate::observe::logged::Logged;
use crate::{Epoch, Evaluation, OptimizerSettings, RunSettings, Summary};

/// An observer of a run. It is called in order, on the trainer's thread. It cannot change the answer. One
/// that panics is called no more, and the panic ends the fit after the step, which is saved: it is an error
/// that names the observer ([`Error::Panic`](crate::Error::Panic)). In a loop of your own the next step
/// returns it.
///
/// Progress bars and loggers are observers: `Progress`, [`TensorBoard`](crate::TensorBoard),
/// [`CsvLog`](crate::CsvLog), [`JsonLines`](crate::JsonLines) and [`Plot`](crate::Plot).
///
/// On several machines the first rank calls its observers. If that rank is lost and the others go on, the
/// next one calls its own from then on: they hear of a start, with the epochs so far.
pub trait Observer: Send {
    /// Returns whether each rank of a run on several machines calls its own observer, and not the first one
    /// alone. Default: `false`.
    fn on_all_ranks(&self) -> bool {
        false
    }

    /// Is called when a fit begins, before its first step, also where it has nothing to do. Default: does
    /// nothing.
    fn started(&mut self, _start: &Start<'_>) {}

    /// Is called after each step. Default: does nothing.
    fn step(&mut self, _step: &Step) {}

    /// Is called after each epoch. Default: does nothing.
    fn epoch(&mut self, _epoch: &Epoch) {}

    /// Is called before [`Observer::epoch`] with what each replica did since the run's start, or since it was
    /// resumed. `step` is the number of steps done. Default: does nothing.
    fn replicas(&mut self, _step: u64, _replicas: &[ReplicaReport]) {}

    /// Returns whether the observer wants the parameters after an epoch, counted from 0. Reading them off the
    /// devices takes time. Default: `false`.
    fn wants_weights(&self, _epoch: u32) -> bool {
        false
    }

    /// Is called before [`Observer::epoch`] with the name and values of each parameter, if
    /// [`Observer::wants_weights`] asked for them. `step` is the number of steps done. Default: does nothing.
    fn weights(&mut self, _step: u64, _weights: &[(&str, Vec<f32>)]) {}

    /// Is called with what a program logs, see [`Trainer::log`](crate::Trainer::log). `step` is the number of
    /// steps done. Default: does nothing.
    fn logged(&mut self, _step: u64, _tag: &str, _value: &Logged) {}

    /// Is called when a checkpoint is complete. Default: does nothing.
    fn saved(&mut self, _path: &Path) {}

    /// Is called when the run goes on from a checkpoint: the steps from `step` on, which an earlier process
    /// may have told of, are made again. Default: does nothing.
    fn resumed(&mut self, _step: u64) {}

    /// Is called when the run goes back to an earlier step, because replicas were wrong: the steps from
    /// `step` on, and the epochs that ended with them, are made again. Default: does nothing.
    fn rolled_back(&mut self, _step: u64) {}

    /// Receives a message for the user, such as that a replica left. Default: does nothing.
    fn note(&mut self, _text: &str) {}

    /// Is called when a fit has made its last step, or has failed. Default: does nothing.
    fn ended(&mut self) {}

    /// Returns a problem of the observer's own, such as a full disk, once. The run goes on, and all observers
    /// receive the problem as a note. Default: `None`.
    fn take_problem(&mut self) -> Option<String> {
        None
    }
}

/// The start of a fit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Start<'a> {
    /// The number of steps done since the run's start.
    pub step: u64,
    /// The number of samples of the present epoch that are done.
    pub done: u64,
    /// The epochs so far. A resumed run has those before it too.
    pub history: &'a [Epoch],
    /// The names of the metrics whose results are numbers, in the trainer's order.
    pub metrics: &'a [String],
    /// The settings that the run's answer depends on.
    pub settings: &'a RunSettings,
    /// The settings of the optimizer.
    pub optimizer: &'a OptimizerSettings,
    /// The layers of the model.
    pub summary: &'a Summary,
}

impl Start<'_> {
    /// Returns the epochs so far: those of the history and, of those that an observer has seen, the ones of
    /// loops of one's own, which no history has.
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
    /// The number of epochs that the fit goes to.
    pub epochs: u32,
    /// The number of samples of the epoch that are done, this step's included.
    pub done: u64,
    /// The number of samples in the epoch.
    pub of: u64,
    /// The number of samples in the step.
    pub samples: u64,
    /// The learning rate of the step, as [`Trainer::learning_rate`](crate::Trainer::learning_rate) gives it
    /// before the step. `None` if the optimizer has no schedule.
    pub learning_rate: Option<f64>,
    /// The mean loss and metrics of the step.
    pub now: Evaluation,
    /// The mean loss and metrics of the epoch so far.
    pub so_far: Evaluation,
    /// Whether the step changed parameters. It does not if all weights are 0, or if a summed gradient is not
    /// finite and the next step has a smaller loss scale.
    pub committed: bool,
}
