//! A step's batch: how it is cut into shards, what it brings, and what the step returns of it.

pub(crate) mod feed;
pub(crate) mod held;
pub(crate) mod outputs;
pub mod shards;
