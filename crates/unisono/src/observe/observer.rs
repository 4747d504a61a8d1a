//! Observers, who are told how a run goes.

use std::path::Path;

use crate::{Epoch, Evaluation};

/// An observer is told of steps and epochs, in order, on the trainer's thread. What it does never changes the
/// answer.
pub trait Observer: Send {
    /// Is told that a step is done. Default: does nothing.
    fn step(&mut self, _step: &Step) {}

    /// Is told that an epoch is done. Default: does nothing.
    fn epoch(&mut self, _epoch: &Epoch) {}

    /// Is told that a checkpoint is in place. Default: does nothing.
    fn saved(&mut self, _path: &Path) {}

    /// Is told something worth knowing, such as that a replica left. Default: does nothing.
    fn note(&mut self, _text: &str) {}
}

/// What a step did.
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
    /// The mean loss and metrics of the step.
    pub now: Evaluation,
    /// The mean loss and metrics of the epoch so far.
    pub so_far: Evaluation,
    /// Whether the step changed parameters. It does not where all weights were 0, nor where a summed gradient
    /// was not finite and the next step has a smaller loss scale.
    pub committed: bool,
}
