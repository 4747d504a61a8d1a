#![doc = include_str!("../README.md")]

mod backend;
mod compile;
mod kernels;
mod native;
mod options;
mod run;
#[cfg(feature = "targets")]
pub mod targets;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs compile all kernels"))]
mod wide;

pub use kernels::Kernels;
pub use native::{Rounding, has_fma};
pub use options::Options;

/// Whether this crate is compiled with optimization. If not, the crate's native code for matrix products,
/// attention and kernels without loops is not used: Cranelift compiles the WGSL of these kernels instead.
/// Compiling kernels then takes many times as long.
pub const IS_OPTIMIZED: bool = !cfg!(unoptimized);

/// Returns whether this CPU is one for which kernels can be compiled: x86-64, AArch64, or another one
/// of 64 bits that Cranelift knows, with little-endian numbers.
pub fn is_supported() -> bool {
    cfg!(target_pointer_width = "64") && cfg!(target_endian = "little") && compile::has_compiler()
}

/// Returns the CPU as an adapter.
pub fn adapter(options: Options) -> wgpu::Adapter {
    adapter_for(options, compile::Target::Host)
}

/// Returns the CPU as an adapter whose kernels have only the instructions of every CPU of this architecture.
/// For tests.
#[doc(hidden)]
pub fn baseline_adapter(options: Options) -> wgpu::Adapter {
    adapter_for(options, compile::Target::Baseline)
}

fn adapter_for(options: Options, target: compile::Target) -> wgpu::Adapter {
    wgpu::Adapter::from_custom(backend::adapter::Adapter { options, target })
}
