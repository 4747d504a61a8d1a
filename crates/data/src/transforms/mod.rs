//! Transforms of samples, and the statistics that some of them need.

pub mod augment;
pub(crate) mod padding;
pub(crate) mod preprocess;
mod saved;
pub(crate) mod spectrum;
pub(crate) mod standard;
pub(crate) mod statistics;
