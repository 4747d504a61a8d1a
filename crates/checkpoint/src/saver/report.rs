//! What became of a save.

use std::time::Duration;

use crate::store::Saved;
use crate::tensors::error::Error;

/// What became of a save.
#[derive(Debug)]
pub enum Report {
    /// Complete and durable.
    Saved {
        /// Its step.
        step: u64,
        /// Where, and what could not be removed.
        saved: Saved,
        /// How long the writing took, of which the training thread felt nothing.
        took: Duration,
    },
    /// Not written: a newer one came before its turn.
    Replaced {
        /// Its step.
        step: u64,
        /// The newer one's.
        by: u64,
    },
    /// Not written, for a reason that may pass. Worth a warning. Tried again with the next save, or its successor is.
    Failed {
        /// Its step.
        step: u64,
        /// The reason.
        error: Error,
    },
}
