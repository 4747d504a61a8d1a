//! From a source and an order to batches: the loader, the pipeline of one sample, and the threads that run
//! ahead.

pub(crate) mod hashing;
mod known;
pub(crate) mod loader;
mod pace;
mod pipeline;
pub(crate) mod prefetch;
pub(crate) mod seen;
