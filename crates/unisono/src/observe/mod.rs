//! What a run tells its user: observers, progress, reports, traces and summaries.

pub(crate) mod observer;
#[cfg(feature = "progress-bar")]
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod summary;
pub(crate) mod trace;
pub(crate) mod watch;
