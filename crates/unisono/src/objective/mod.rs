//! What is minimised and what is measured: losses, metrics and the history of a run.

pub(crate) mod history;
pub(crate) mod losses;
pub(crate) mod metrics;
pub(crate) mod number;
pub(crate) mod running;
pub(crate) mod tensors;

pub use history::{Epoch, Evaluation, History};
