//! Who wants to know how a run goes.

use std::path::Path;

use crate::{Epoch, Evaluation};

/// Told of steps and epochs, in order, on the trainer's thread. What it does never changes the answer.
pub trait Observer: Send {
    /// A step is done.
    fn step(&mut self, _step: &Step) {}

    /// An epoch is done.
    fn epoch(&mut self, _epoch: &Epoch) {}

    /// A checkpoint is in place.
    fn saved(&mut self, _path: &Path) {}

    /// Something worth knowing, such as a replica that left.
    fn note(&mut self, _text: &str) {}
}

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 0.
    pub step: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Epochs that the fit goes to.
    pub epochs: u32,
    /// Samples of the epoch that are done, this step's included.
    pub done: u64,
    /// Samples of the epoch.
    pub of: u64,
    /// Samples of the step.
    pub samples: u64,
    /// The step's loss and metrics.
    pub now: Evaluation,
    /// Means over the epoch so far.
    pub so_far: Evaluation,
    /// Whether parameters changed: not where all weights were 0, and not where a summed gradient was not finite and the next step
    /// has a smaller loss scale.
    pub committed: bool,
}
