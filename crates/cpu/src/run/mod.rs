//! Runs kernels: memory, workgroups, threads, and the order of what was submitted.

pub(crate) mod group;
pub(crate) mod memory;
pub(crate) mod pool;
pub(crate) mod timeline;

#[cfg(test)]
mod fuzz;
