//! Observers, which are called as a run proceeds.

use std::path::Path;

use crate::{Epoch, Evaluation};

/// An observer of a run. It is called in order, on the trainer's thread. It cannot change the answer.
pub trait Observer: Send {
    /// Is called after each step. Default: does nothing.
    fn step(&mut self, _step: &Step) {}

    /// Is called after each epoch. Default: does nothing.
    fn epoch(&mut self, _epoch: &Epoch) {}

    /// Is called when a checkpoint is complete. Default: does nothing.
    fn saved(&mut self, _path: &Path) {}

    /// Is called when the run goes back to an earlier step, because replicas were wrong: the steps from
    /// `step` on, and the epochs that ended with them, are made again. Default: does nothing.
    fn rolled_back(&mut self, _step: u64) {}

    /// Receives a message for the user, such as that a replica left. Default: does nothing.
    fn note(&mut self, _text: &str) {}
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
    /// The mean loss and metrics of the step.
    pub now: Evaluation,
    /// The mean loss and metrics of the epoch so far.
    pub so_far: Evaluation,
    /// Whether the step changed parameters. It does not if all weights are 0, or if a summed gradient is not
    /// finite and the next step has a smaller loss scale.
    pub committed: bool,
}
