//! Asking a run to end early, from another thread or from a signal's handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a fit to finish the step it is at, save the run and return. Clones share one state: a program
/// keeps one and gives the trainer the other.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Creates a stop that nobody has asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the run to end. Returns whether this was the first time.
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Returns the flag that is true once somebody has asked, for those who can only set a flag, such as
    /// handlers of signals.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Returns whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
