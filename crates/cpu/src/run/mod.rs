//! Runs kernels: memory, workgroups, threads, and the order of what was submitted.

pub(crate) mod command;
pub(crate) mod group;
pub(crate) mod launch;
pub(crate) mod memory;
mod pool;
pub(crate) mod timeline;
