//! Attention and its gradients for 32 queries or keys, which are lanes of vectors, for CPUs with vectors of
//! eight numbers or more. Every number is computed by the operations of the kernels' WGSL
//! (`shaders/attention/alone*.wgsl`), in their order.

mod block;
mod parts;

use std::mem::MaybeUninit;

use self::block::{Code, Scratch};
use super::Rounding;
use super::panels::{Run, Vectors, has_fma};

/// The number of own places that code computes at once, and of the rows of the other side in a block.
pub(crate) const BLOCK: usize = 32;

/// The longest rows, in numbers.
pub(crate) const MOST_WIDTH: u32 = 128;

/// Where rows of numbers lie.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub start: *mut f32,
    /// How far apart two rows are.
    pub step: u32,
}

/// What [`Vectors::attention`]'s code computes for the own places from `first` on, which is a multiple of
/// [`BLOCK`]. Operands and results that a kernel does not have are null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// The operands: queries and keys have rows of `d` numbers, values and the gradient of results of `e`.
    pub q: Rows,
    pub k: Rows,
    pub v: Rows,
    pub dy: Rows,
    /// The results, as long as what they are the gradient of.
    pub out: Rows,
    pub dq: Rows,
    pub dk: Rows,
    pub dv: Rows,
    /// A number for each query.
    pub lse: *const f32,
    pub delta: *const f32,
    pub lse_out: *mut f32,
    /// What is not 0 where a query sees a key, and how far apart queries and keys are there.
    pub mask: *const f32,
    pub mask_query: u32,
    pub mask_key: u32,
    pub first: u32,
    pub queries: u32,
    pub keys: u32,
    pub d: u32,
    pub e: u32,
    pub causal: u32,
    pub scale: f32,
}

/// What is computed of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The results, for own queries.
    Forward,
    /// The gradient by own queries.
    Query,
    /// The gradients by own keys and their values.
    Key,
}

impl Vectors {
    /// Returns the code of a part of attention, if there is code for these vectors.
    pub fn attention(self, part: Part, rounding: Rounding) -> Option<Run<Attention>> {
        #[cfg(target_arch = "x86_64")]
        {
            match part {
                Part::Forward => x86::code::<0>(self, rounding),
                Part::Query => x86::code::<1>(self, rounding),
                Part::Key => x86::code::<2>(self, rounding),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (part, rounding, has_fma);
            None
        }
    }
}

/// Computes a part of attention: 0 forward, 1 by queries, 2 by keys.
///
/// # Safety
/// The task's pointers hold what it reads and writes. There are queries and keys, `d` and `e` are multiples
/// of four of [`MOST_WIDTH`] at most.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn run<const PART: u8, const WIDTH: usize>(
    task: *const Attention,
    fma: impl Fn(f32, f32, f32) -> f32,
) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    // SAFETY: what the caller promises.
    unsafe {
        let code = Code::<_, WIDTH> { task: &*task, fma, scratch: scratch.as_mut_ptr() };
        match PART {
            0 => code.forward(),
            1 => code.query(),
            _ => code.key(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "called by machine code")]
mod x86 {
    use super::{Attention, Rounding, Run, Vectors, has_fma, run};

    /// Returns the code of a part for these vectors.
    pub(super) fn code<const PART: u8>(vectors: Vectors, rounding: Rounding) -> Option<Run<Attention>> {
        Some(match (vectors, rounding) {
            (Vectors::Avx512, Rounding::Fused) => fused_avx512::<PART>,
            (Vectors::Avx512, Rounding::Split) => split_avx512::<PART>,
            (Vectors::Avx2, Rounding::Fused) if has_fma() => fused_avx2::<PART>,
            (Vectors::Avx2, Rounding::Split) => split_avx2::<PART>,
            _ => return None,
        })
    }

    macro_rules! code {
        ($name:ident, $features:literal, $width:literal, $fma:expr) => {
            /// # Safety
            /// As for [`run`], on a CPU that has these instructions.
            #[target_feature(enable = $features)]
            unsafe extern "C" fn $name<const PART: u8>(task: *const Attention) {
                // SAFETY: what the caller promises.
                unsafe { run::<PART, $width>(task, $fma) }
            }
        };
    }

    code!(split_avx512, "avx512f", 32, |x: f32, y, z| x * y + z);
    code!(fused_avx512, "avx512f,fma", 32, |x: f32, y, z| x.mul_add(y, z));
    code!(split_avx2, "avx2", 16, |x: f32, y, z| x * y + z);
    code!(fused_avx2, "avx2,fma", 16, |x: f32, y, z| x.mul_add(y, z));
}
