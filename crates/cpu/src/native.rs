//! Code that kernels call: what they spend most of their time in, for the vectors that this processor has,
//! and functions of floats, with the same bits on every processor.

use naga::MathFunction;

/// A function of one float.
pub(crate) type Unary = extern "C" fn(f32) -> f32;

/// A function of two floats.
type Binary = extern "C" fn(f32, f32) -> f32;

/// Code that takes as many floats as its function has operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Unary(Unary),
    Binary(Binary),
}

impl Code {
    /// Returns the address of the code.
    pub fn address(self) -> usize {
        match self {
            Self::Unary(code) => code as usize,
            Self::Binary(code) => code as usize,
        }
    }
}

/// Returns the code of a function, if there is some.
pub(crate) fn function(function: MathFunction) -> Option<Code> {
    macro_rules! unary {
        ($name:ident) => {{
            extern "C" fn code(x: f32) -> f32 {
                libm::$name(x)
            }
            Some(Code::Unary(code))
        }};
    }
    macro_rules! binary {
        ($name:ident) => {{
            extern "C" fn code(x: f32, y: f32) -> f32 {
                libm::$name(x, y)
            }
            Some(Code::Binary(code))
        }};
    }
    match function {
        MathFunction::Sin => unary!(sinf),
        MathFunction::Cos => unary!(cosf),
        MathFunction::Tan => unary!(tanf),
        MathFunction::Asin => unary!(asinf),
        MathFunction::Acos => unary!(acosf),
        MathFunction::Atan => unary!(atanf),
        MathFunction::Sinh => unary!(sinhf),
        MathFunction::Cosh => unary!(coshf),
        MathFunction::Tanh => unary!(tanhf),
        MathFunction::Asinh => unary!(asinhf),
        MathFunction::Acosh => unary!(acoshf),
        MathFunction::Atanh => unary!(atanhf),
        MathFunction::Exp => unary!(expf),
        MathFunction::Exp2 => unary!(exp2f),
        MathFunction::Log => unary!(logf),
        MathFunction::Log2 => unary!(log2f),
        MathFunction::Atan2 => binary!(atan2f),
        MathFunction::Pow => binary!(powf),
        _ => None,
    }
}

/// Returns the functions that Cranelift calls, by their names, on a processor without instructions for them.
/// What the mode of the thread takes for 0 is 0 here as well.
pub(crate) fn rounding() -> [(&'static str, Unary); 4] {
    fn taken(x: f32) -> f32 {
        x * std::hint::black_box(1.0)
    }
    extern "C" fn floor(x: f32) -> f32 {
        libm::floorf(taken(x))
    }
    extern "C" fn ceil(x: f32) -> f32 {
        libm::ceilf(taken(x))
    }
    extern "C" fn trunc(x: f32) -> f32 {
        libm::truncf(taken(x))
    }
    extern "C" fn nearest(x: f32) -> f32 {
        libm::rintf(taken(x))
    }
    [("floorf", floor), ("ceilf", ceil), ("truncf", trunc), ("nearbyintf", nearest)]
}

/// Computes eight rows of 32 sums: row r of `tile` becomes the sum over p, in order from +0, of
/// `left[rows[r] + p * step] * panel[32 * p..][..32]`. Each product and each sum is rounded.
pub(crate) type PanelProduct = unsafe extern "C" fn(
    left: *const f32,
    rows: *const u32,
    step: u32,
    panel: *const f32,
    steps: u32,
    tile: *mut f32,
);

/// Returns the code for this processor.
pub(crate) fn panel_product() -> PanelProduct {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && !cfg!(miri) {
            return x86::avx512;
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return x86::avx2;
        }
    }
    plain
}

/// Computes `ROWS` rows and `WIDTH` columns, for which all sums are in registers.
///
/// # Safety
/// As for [`panel_product`]'s code.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn block<const ROWS: usize, const WIDTH: usize>(
    left: *const f32,
    rows: [usize; ROWS],
    step: usize,
    panel: *const f32,
    steps: usize,
    tile: *mut f32,
) {
    let mut sums = [[0.0f32; WIDTH]; ROWS];
    // SAFETY: what the caller promises: rows, panel and tile hold what is read and written.
    unsafe {
        let starts = rows.map(|row| left.add(row));
        for p in 0..steps {
            let columns = panel.add(32 * p).cast::<[f32; WIDTH]>().read_unaligned();
            for (sums, start) in sums.iter_mut().zip(starts) {
                let x = *start.add(p * step);
                for (sum, y) in sums.iter_mut().zip(columns) {
                    *sum += x * y;
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            tile.add(32 * r).cast::<[f32; WIDTH]>().write_unaligned(sums);
        }
    }
}

/// Computes all blocks of a tile.
///
/// # Safety
/// As for [`panel_product`]'s code.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn blocks<const ROWS: usize, const WIDTH: usize>(
    left: *const f32,
    rows: *const u32,
    step: u32,
    panel: *const f32,
    steps: u32,
    tile: *mut f32,
) {
    for first in (0..8).step_by(ROWS) {
        for column in (0..32).step_by(WIDTH) {
            // SAFETY: what the caller promises; `ROWS` divides 8 and `WIDTH` 32.
            unsafe {
                let own = std::array::from_fn(|r| *rows.add(first + r) as usize);
                let to = tile.add(32 * first + column);
                block::<ROWS, WIDTH>(left, own, step as usize, panel.add(column), steps as usize, to);
            }
        }
    }
}

/// For any processor with 16 registers of four numbers.
///
/// # Safety
/// The pointers hold what is read and written.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn plain(
    left: *const f32,
    rows: *const u32,
    step: u32,
    panel: *const f32,
    steps: u32,
    tile: *mut f32,
) {
    // SAFETY: what the caller promises.
    unsafe { blocks::<4, 8>(left, rows, step, panel, steps, tile) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::blocks;

    /// For 16 registers of eight numbers.
    ///
    /// # Safety
    /// The pointers hold what is read and written, and the processor has AVX2.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe extern "C" fn avx2(
        left: *const f32,
        rows: *const u32,
        step: u32,
        panel: *const f32,
        steps: u32,
        tile: *mut f32,
    ) {
        // SAFETY: what the caller promises.
        unsafe { blocks::<4, 16>(left, rows, step, panel, steps, tile) }
    }

    /// For 32 registers of sixteen numbers.
    ///
    /// # Safety
    /// The pointers hold what is read and written, and the processor has AVX-512.
    #[expect(unsafe_code, reason = "called by machine code")]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe extern "C" fn avx512(
        left: *const f32,
        rows: *const u32,
        step: u32,
        panel: *const f32,
        steps: u32,
        tile: *mut f32,
    ) {
        // SAFETY: what the caller promises.
        unsafe { blocks::<8, 32>(left, rows, step, panel, steps, tile) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes that this processor can run give the bits of a plain loop.
    #[test]
    fn products_have_the_same_bits_on_all_processors() {
        let mut codes: Vec<(&str, PanelProduct)> = vec![("plain", plain), ("chosen", panel_product())];
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx2") {
                codes.push(("avx2", x86::avx2));
            }
            if std::arch::is_x86_feature_detected!("avx512f") {
                codes.push(("avx512", x86::avx512));
            }
        }
        let number = |i: usize| ((i * 2_654_435_761) % 1_000_003) as f32 * 1e-3 - 500.0;
        let left: Vec<f32> = (0..2000).map(number).collect();
        let panel: Vec<f32> = (7..7 + 32 * 70).map(number).collect();
        for (steps, step) in [(0, 1), (1, 3), (70, 1), (65, 19)] {
            let rows: [u32; 8] = std::array::from_fn(|r| (r * 91 % 500) as u32);
            let mut expected = vec![0.0f32; 256];
            for (at, sum) in expected.iter_mut().enumerate() {
                for p in 0..steps {
                    *sum += left[rows[at / 32] as usize + p * step] * panel[32 * p + at % 32];
                }
            }
            for (name, code) in &codes {
                let mut tile = vec![f32::NAN; 256];
                // SAFETY: the last element that is read is 499 + 64 * 19 of `left` and 32 * 70 of `panel`.
                #[expect(unsafe_code, reason = "the code works on memory of kernels")]
                unsafe {
                    code(
                        left.as_ptr(),
                        rows.as_ptr(),
                        step as u32,
                        panel.as_ptr(),
                        steps as u32,
                        tile.as_mut_ptr(),
                    );
                }
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(&tile) == bits(&expected), "{name}, {steps} steps {step} apart");
            }
        }
    }
}
