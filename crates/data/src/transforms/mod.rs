//! Transforms of samples, and the statistics that some of them need.

pub mod augment;
mod saved;
pub(crate) mod padding;
pub(crate) mod preprocess;
pub(crate) mod standard;
pub(crate) mod statistics;
