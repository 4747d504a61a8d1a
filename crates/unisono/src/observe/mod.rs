//! What a run tells its user: observers, progress, loggers, reports, traces and summaries.

pub(crate) mod csv_log;
#[cfg(feature = "dashboard")]
pub(crate) mod dashboard;
pub(crate) mod events;
pub(crate) mod file;
pub(crate) mod json_lines;
pub(crate) mod logged;
pub(crate) mod machines;
pub(crate) mod monitor;
pub(crate) mod observer;
mod places;
pub(crate) mod plot;
#[cfg(feature = "progress-bar")]
pub(crate) mod progress;
pub(crate) mod report;
#[cfg(feature = "progress-bar")]
mod shown;
pub(crate) mod summary;
pub(crate) mod tables;
pub(crate) mod tensorboard;
pub(crate) mod trace;
