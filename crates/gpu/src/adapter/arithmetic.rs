//! The arithmetics that the CPU can compute in, so that it can compute what a GPU computes.

use std::fmt;
use std::str::FromStr;

use unisono_graph::target::UnitSums;

use crate::adapter::enumerate::cpu;
use crate::{Adapter, Backend};

/// How the CPU computes: the two choices that WGSL leaves to an adapter, and the matrix unit whose results it
/// computes where one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    /// Whether `fma` rounds once, as on GPUs. Otherwise it rounds the product and the sum, as software
    /// drivers do. Default: true.
    pub fused: bool,
    /// Whether subnormal numbers are kept inside of kernels. Otherwise they are zeros. Results of sums have
    /// none either way. Default: false.
    pub subnormals: bool,
    /// If a run uses matrix units, the CPU computes in software what a unit does. This says how that unit
    /// adds. It changes nothing in other runs. Default: [`UnitSums::InTurn`].
    pub unit_sums: UnitSums,
}

/// One rounding, and subnormal numbers are zeros: as on an NVIDIA GPU.
impl Default for Arithmetic {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl Arithmetic {
    /// All that can be named, the default first.
    pub const ALL: [Self; 5] = [
        Self::of(true, false),
        Self::of(false, false),
        Self::of(true, true),
        Self::of(false, true),
        Self { unit_sums: UnitSums::Aligned, ..Self::of(true, false) },
    ];

    const fn of(fused: bool, subnormals: bool) -> Self {
        Self { fused, subnormals, unit_sums: UnitSums::InTurn }
    }

    /// Returns those that give different results in runs with matrix units, or in runs without them. The
    /// default comes first.
    pub fn distinct(by_unit: bool) -> impl Iterator<Item = Self> {
        let shows = move |own: &Self| by_unit || own.unit_sums == UnitSums::default();
        Self::ALL.into_iter().filter(shows)
    }

    /// Returns the name by which [`crate::select`] knows it, behind `cpu:`. In `hopper` the CPU computes as
    /// in `fused`, and with matrix units as the tensor cores of NVIDIA's Hopper.
    pub fn name(self) -> &'static str {
        match (self.fused, self.subnormals, self.unit_sums) {
            (false, false, _) => "split",
            (false, true, _) => "split-subnormals",
            (true, true, _) => "fused-subnormals",
            (true, false, UnitSums::InTurn) => "fused",
            (true, false, UnitSums::Aligned) => "hopper",
        }
    }
}

impl FromStr for Arithmetic {
    type Err = String;

    /// Reads a name, in upper or lower case.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| format!("it is one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Adapter {
    /// Returns the CPU as an adapter that computes in this arithmetic, if this build has it and kernels can
    /// be compiled for this CPU.
    pub fn cpu(arithmetic: Arithmetic) -> Option<Self> {
        cpu(arithmetic)
    }

    /// Returns whether the adapter computes with code of this program that was compiled without optimization:
    /// the CPU, in a debug build that does not optimize what it depends on.
    pub fn is_unoptimized(&self) -> bool {
        #[cfg(feature = "cpu")]
        let is_optimized = unisono_cpu::IS_OPTIMIZED;
        #[cfg(not(feature = "cpu"))]
        let is_optimized = true;
        self.backend == Backend::Cpu && !is_optimized
    }

    /// Returns whether this is the CPU in an arithmetic for which it has no instruction, so that products
    /// take many times as long.
    pub fn emulates_fma(&self) -> bool {
        #[cfg(feature = "cpu")]
        let has_fma = unisono_cpu::has_fma();
        #[cfg(not(feature = "cpu"))]
        let has_fma = true;
        self.arithmetic.is_some_and(|arithmetic| arithmetic.fused) && !has_fma
    }
}
