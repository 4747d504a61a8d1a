//! The arithmetics that the CPU can compute in, so that it can compute what a GPU computes.

use crate::Adapter;
use crate::adapter::enumerate::processor;

/// How the CPU computes: the two choices that WGSL leaves to an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    /// Whether `fma` rounds once, as on GPUs. Otherwise it rounds the product and the sum, as software
    /// drivers do. Default: false.
    pub fused: bool,
    /// Whether subnormal numbers are kept inside of kernels. Otherwise they are zeros. Results of sums have
    /// none either way. Default: false.
    pub subnormals: bool,
}

impl Arithmetic {
    /// All of them, the default first.
    pub const ALL: [Self; 4] = [
        Self { fused: false, subnormals: false },
        Self { fused: true, subnormals: false },
        Self { fused: true, subnormals: true },
        Self { fused: false, subnormals: true },
    ];

    /// Returns the name by which [`crate::select`] knows it, behind `cpu:`.
    pub fn name(self) -> &'static str {
        match (self.fused, self.subnormals) {
            (false, false) => "split",
            (false, true) => "split-subnormals",
            (true, false) => "fused",
            (true, true) => "fused-subnormals",
        }
    }

    /// Returns the arithmetic of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    }
}

impl Adapter {
    /// Returns the CPU as an adapter that computes in this arithmetic, if this build has it and kernels can
    /// be compiled for this CPU.
    pub fn cpu(arithmetic: Arithmetic) -> Option<Self> {
        processor(arithmetic)
    }
}
