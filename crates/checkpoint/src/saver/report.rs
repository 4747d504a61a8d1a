//! Reports of saves.

use std::time::Duration;

use crate::store::Saved;
use crate::tensors::error::Error;

/// The outcome of a save.
#[derive(Debug)]
pub enum Report {
    /// The checkpoint is complete and durable.
    Saved {
        /// The checkpoint's step.
        step: u64,
        /// Where the checkpoint is, and what could not be removed.
        saved: Saved,
        /// The time that writing took. The training thread did not wait for it.
        took: Duration,
    },
    /// The checkpoint was not written, because a newer one came before its turn.
    Replaced {
        /// The checkpoint's step.
        step: u64,
        /// The newer one's step.
        by: u64,
    },
    /// The checkpoint was not written, for a reason that may pass. It deserves a warning. The next save tries
    /// it again, or saves its successor instead.
    Failed {
        /// The checkpoint's step.
        step: u64,
        /// The reason.
        error: Error,
    },
}
