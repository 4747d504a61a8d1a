//! What devices of one adapter may share.

/// The compiled kernels of the CPU, for devices that share them: each kernel is compiled once, by the
/// device that comes to it first, and the others use its code. Clones are the same kernels.
///
/// Other adapters have no use for it: their drivers have caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedKernels(#[cfg(feature = "cpu")] unisono_cpu::Kernels);

impl SharedKernels {
    /// Returns the number of kernels that were compiled so far.
    #[cfg(feature = "cpu")]
    pub fn compiled(&self) -> u64 {
        self.0.compiled()
    }

    /// Returns the number of kernels that were compiled so far.
    #[cfg(not(feature = "cpu"))]
    pub fn compiled(&self) -> u64 {
        0
    }

    #[cfg(feature = "cpu")]
    pub(crate) fn of_cpu(&self) -> unisono_cpu::Kernels {
        self.0.clone()
    }
}
