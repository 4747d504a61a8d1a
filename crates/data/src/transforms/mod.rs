//! Transforms of samples, and the statistics that some of them need.

pub mod augment;
pub(crate) mod padding;
mod saved;
pub(crate) mod standard;
pub(crate) mod statistics;
