//! Asking a run to end early, from another thread or from a signal's handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to finish the current step, save the run and return from a fit, or to end an evaluation or a
/// prediction. Clones share one state: a program keeps one and gives the trainer the other
/// ([`Trainer::stop_on`](crate::Trainer::stop_on)).
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Creates a stop that is not requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the run to end. Returns whether this is the first request.
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Takes the request back, so that runs with this stop can continue. A fit that has already seen the
    /// request ends nevertheless.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns the flag that becomes true with the first request, for code that can only set a flag, such as
    /// a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Returns whether the run was asked to end.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
