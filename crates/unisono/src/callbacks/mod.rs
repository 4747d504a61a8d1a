//! Callbacks of the library. A new one is a file here that implements [`Callback`](crate::Callback), a `mod`
//! line and a `pub use` line.

mod early_stopping;
mod evaluate_every;
mod function;
mod learning_rate_finder;
mod pause_after;
mod print_samples;
mod reduce_on_plateau;

pub use early_stopping::EarlyStopping;
pub use evaluate_every::EvaluateEvery;
pub use function::{OnEpoch, OnStep, on_epoch, on_step};
pub use learning_rate_finder::{LearningRateFinder, RateLosses};
pub use pause_after::PauseAfter;
pub use print_samples::PrintSamples;
pub use reduce_on_plateau::ReduceOnPlateau;
