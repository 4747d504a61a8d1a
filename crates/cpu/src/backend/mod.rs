//! What wgpu asks of a backend ([`wgpu::custom`]), as far as kernels need it: buffers, compute pipelines,
//! copies, timestamps.

pub(crate) mod adapter;
mod commands;
mod device;
mod errors;
mod queue;
mod resources;
mod unused;
