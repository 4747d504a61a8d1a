//! The observers of a run, and the stop that may end it.

use std::path::Path;

use unisono_data::Seen;

use crate::Epoch;
use crate::observe::observer::{Observer, Step};
use crate::run::stop::Stop;

/// The observers of a run, its notes, and the stop that may end it.
#[derive(Default)]
pub(crate) struct Watch {
    /// The observers, which are called with steps, epochs, checkpoints and notes.
    pub observers: Vec<Box<dyn Observer>>,
    /// Notes for the user about the settings.
    pub notes: Vec<String>,
    /// The stop that ends fits.
    pub stop: Stop,
    /// What the input pipeline of the last fit did.
    pub input: Option<Seen>,
    /// Whether observers were told that a loader's own batch size is not used.
    pub told_batch: bool,
}

impl Watch {
    /// Tells observers that a step is done.
    pub fn step(&mut self, step: &Step) {
        self.observers.iter_mut().for_each(|o| o.step(step));
    }

    /// Tells observers that an epoch is done.
    pub fn epoch(&mut self, epoch: &Epoch) {
        self.observers.iter_mut().for_each(|o| o.epoch(epoch));
    }

    /// Tells observers that a checkpoint is in place.
    pub fn saved(&mut self, path: &Path) {
        self.observers.iter_mut().for_each(|o| o.saved(path));
    }

    /// Tells observers that the run goes back to a step.
    pub fn rolled_back(&mut self, step: u64) {
        self.observers.iter_mut().for_each(|o| o.rolled_back(step));
    }

    /// Tells observers something worth knowing.
    pub fn note(&mut self, text: &str) {
        self.observers.iter_mut().for_each(|o| o.note(text));
    }
}
