//! The CPU as an adapter of wgpu: what WGSL says, what is refused, and the order of commands.

mod common;
mod confined;
mod device;
mod edges;
mod fused;
mod language;
mod random_kernels;
mod schedules;
#[cfg(feature = "targets")]
mod targets;
mod validity;
