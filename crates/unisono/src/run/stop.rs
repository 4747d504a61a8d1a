//! Asking a run to end early, from another thread or a signal's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a fit to finish the step it is at, save the run and return. Clones are one: keep one, give the trainer the other.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks. Returns whether this was the first time.
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// True once somebody has asked, for those who can only set a flag, such as handlers of signals.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
