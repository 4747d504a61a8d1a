//! How a device computes.

use crate::Kernels;
use crate::native::Rounding;

/// The settings of the CPU as an adapter.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of threads that compute. Default: one for each core.
    pub threads: usize,
    /// Called on each of these threads when it starts, for instance to set the CPU's floating-point
    /// mode. Default: nothing.
    pub begin: fn(),
    /// How `fma` rounds. Default: [`Rounding::Fused`].
    pub rounding: Rounding,
    /// The compiled kernels. Devices whose options have clones of the same `Kernels` compile each kernel
    /// once. Default: kernels of its own.
    pub kernels: Kernels,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, begin: || (), rounding: Rounding::Fused, kernels: Kernels::default() }
    }
}
