//! Tensor graphs.
pub mod plan;
pub mod target;
