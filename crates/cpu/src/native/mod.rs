//! Code that kernels call.

mod add;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs compile its WGSL"))]
mod attention;
mod copy;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs compile its WGSL"))]
pub(crate) mod elementary;
mod few;
mod functions;
mod panels;
#[cfg(target_arch = "x86_64")]
mod transposed;
mod view;

pub(crate) use add::{MOST_ADDENDS, PanelAdd};
pub(crate) use attention::{Attention, MOST_WIDTH, Part};
pub(crate) use copy::PanelCopy;
pub(crate) use few::FewProduct;
pub(crate) use functions::{Code, function, fused};
pub use panels::has_fma;
pub(crate) use panels::{Goal, PanelProduct, Run, Vectors, canonical, vectors};
pub(crate) use view::{MOST_BORDERS, ViewCopy};

/// How often `fma(a, b, c)` rounds. WGSL allows both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// It rounds the product, and then the sum, as software drivers do.
    Split,
    /// It rounds once, as GPUs do: the exact `a * b + c`. A CPU without such an instruction
    /// ([`crate::has_fma`]) computes it by a function that takes many times as long.
    #[default]
    Fused,
}

/// A buffer as it is bound.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub start: *mut u8,
    pub bytes: u64,
}
