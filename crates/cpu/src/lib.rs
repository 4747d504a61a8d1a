//! A [`wgpu::Adapter`] that is the host's processor, without any driver: kernels in WGSL are compiled to the
//! processor's own code by Cranelift, and all cores share the workgroups of a launch.
//!
//! It is for compute alone: buffers, compute pipelines, copies and timestamps. What else wgpu can do is
//! reported as a validation error. Invocations of a workgroup run one after the other, so a kernel is fast
//! here if each invocation does much with vectors of four, and waits for no other one.
//!
//! Arithmetic is IEEE 754's: `sqrt` and `/` round correctly, and `fma` rounds as [`Options::rounding`] says.
//! Kernels are compiled with the bounds checks of their [`wgpu::ShaderRuntimeChecks`].
//!
//! ```
//! let adapter = unisono_cpu::adapter(unisono_cpu::Options::default());
//! assert_eq!(adapter.get_info().device_type, wgpu::DeviceType::Cpu);
//! ```

mod backend;
mod compile;
mod kernels;
mod native;
mod options;
mod run;
#[cfg(feature = "targets")]
pub mod targets;

pub use kernels::Kernels;
pub use native::{Rounding, has_fma};
pub use options::Options;

/// Whether this crate is compiled with optimization. Without it kernels are the same but for those of
/// products, which are then Cranelift's code alone, and compiling them takes many times as long.
pub const IS_OPTIMIZED: bool = !cfg!(unoptimized);

/// Returns whether this processor is one for which kernels can be compiled: x86-64, AArch64, or another one
/// of 64 bits that Cranelift knows, with little-endian numbers.
pub fn is_supported() -> bool {
    cfg!(target_pointer_width = "64") && cfg!(target_endian = "little") && compile::has_compiler()
}

/// Returns the processor as an adapter.
pub fn adapter(options: Options) -> wgpu::Adapter {
    adapter_for(options, compile::Target::Host)
}

fn adapter_for(options: Options, target: compile::Target) -> wgpu::Adapter {
    wgpu::Adapter::from_custom(backend::adapter::Adapter { options, target })
}
