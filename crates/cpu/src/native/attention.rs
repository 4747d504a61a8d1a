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
            use x86::{fused_avx2, fused_avx512, split_avx2, split_avx512};
            Some(match (self, rounding, part) {
                (Self::Avx512, Rounding::Fused, Part::Forward) => fused_avx512::<0>,
                (Self::Avx512, Rounding::Fused, Part::Query) => fused_avx512::<1>,
                (Self::Avx512, Rounding::Fused, Part::Key) => fused_avx512::<2>,
                (Self::Avx512, Rounding::Split, Part::Forward) => split_avx512::<0>,
                (Self::Avx512, Rounding::Split, Part::Query) => split_avx512::<1>,
                (Self::Avx512, Rounding::Split, Part::Key) => split_avx512::<2>,
                (Self::Avx2, Rounding::Fused, _) if !has_fma() => return None,
                (Self::Avx2, Rounding::Fused, Part::Forward) => fused_avx2::<0>,
                (Self::Avx2, Rounding::Fused, Part::Query) => fused_avx2::<1>,
                (Self::Avx2, Rounding::Fused, Part::Key) => fused_avx2::<2>,
                (Self::Avx2, Rounding::Split, Part::Forward) => split_avx2::<0>,
                (Self::Avx2, Rounding::Split, Part::Query) => split_avx2::<1>,
                (Self::Avx2, Rounding::Split, Part::Key) => split_avx2::<2>,
                (Self::Plain, ..) => return None,
            })
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
    use super::{Attention, run};

    /// # Safety
    /// As for [`run`], and the CPU has AVX2 and FMA3.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe extern "C" fn fused_avx2<const PART: u8>(task: *const Attention) {
        // SAFETY: what the caller promises.
        unsafe { run::<PART, 16>(task, |x: f32, y, z| x.mul_add(y, z)) }
    }

    /// # Safety
    /// As for [`run`], and the CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe extern "C" fn split_avx2<const PART: u8>(task: *const Attention) {
        // SAFETY: what the caller promises.
        unsafe { run::<PART, 16>(task, |x: f32, y, z| x * y + z) }
    }

    /// # Safety
    /// As for [`run`], and the CPU has AVX-512.
    #[target_feature(enable = "avx512f,fma")]
    pub(super) unsafe extern "C" fn fused_avx512<const PART: u8>(task: *const Attention) {
        // SAFETY: what the caller promises.
        unsafe { run::<PART, 32>(task, |x: f32, y, z| x.mul_add(y, z)) }
    }

    /// # Safety
    /// As for [`run`], and the CPU has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe extern "C" fn split_avx512<const PART: u8>(task: *const Attention) {
        // SAFETY: what the caller promises.
        unsafe { run::<PART, 32>(task, |x: f32, y, z| x * y + z) }
    }
}
