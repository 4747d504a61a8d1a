//! Reports of saves.

use std::time::Duration;

use crate::store::Saved;
use crate::tensors::error::Error;

/// The outcome of a save, or of a note that checkpoints are trusted.
#[derive(Debug)]
#[non_exhaustive]
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
    /// The checkpoint was not written, because a newer one came before its turn, or because both failed and
    /// only the newer one is tried again.
    Replaced {
        /// The checkpoint's step.
        step: u64,
        /// The newer one's step.
        by: u64,
    },
    /// The checkpoint was not written, for a reason that may pass, or because its contents are too large to
    /// be stored. It deserves a warning. The next save tries it again, or saves its successor instead.
    Failed {
        /// The checkpoint's step.
        step: u64,
        /// The reason.
        error: Error,
    },
    /// The checkpoint was not written, because an audit failed and its step is distrusted
    /// ([`Saver::distrust`](crate::Saver::distrust)).
    Dropped {
        /// The checkpoint's step.
        step: u64,
    },
    /// It could not be recorded that checkpoints are trusted. It deserves a warning. The next save or flush
    /// tries again, and until then retention keeps the checkpoint that was the newest trusted one before.
    NotTrusted {
        /// The step up to which checkpoints are to be trusted.
        step: u64,
        /// The reason.
        error: Error,
    },
}
