//! Functions of floats that kernels call, with the same bits on every CPU.

use naga::MathFunction;

/// A function of one float.
type Unary = extern "C" fn(f32) -> f32;

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

/// Returns `x * y + z`, rounded once, on a CPU that has no instruction for it.
///
/// The product of two f32 is exact in f64. Its sum with `z` is rounded to odd there (Boldo and Melquiond
/// 2008, "Emulation of FMA and correctly rounded sums"): a sum that is not exact gets a last bit of 1, from
/// which the second rounding, to f32, sees that something is behind it.
pub(crate) fn fused(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    // Knuth's TwoSum: what the sum has lost.
    let part = sum - product;
    let lost = (product - (sum - part)) + (z - part);
    if lost == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    // An even sum goes one step toward what it has lost.
    let grows = (lost > 0.0) == (sum > 0.0);
    f64::from_bits(if grows { sum.to_bits() + 1 } else { sum.to_bits() - 1 }) as f32
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a word for each number, in no order.
    fn word(i: u64) -> u32 {
        (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 ^ (i as u32).rotate_left(13)
    }

    /// Rust's `mul_add` rounds once on every system.
    #[test]
    fn a_sum_that_is_rounded_to_odd_first_is_rounded_once() {
        let same = |x: f32, y: f32, z: f32| {
            let (own, expected) = (fused(x, y, z), x.mul_add(y, z));
            let same = own.to_bits() == expected.to_bits() || own.is_nan() && expected.is_nan();
            assert!(same, "{x:e} * {y:e} + {z:e}: {own:e}, not {expected:e}");
        };
        // All exponents.
        for i in 0..1_000_000 {
            let [x, y, z] = [3 * i, 3 * i + 1, 3 * i + 2].map(|i| f32::from_bits(word(i)));
            same(x, y, z);
        }
        // Sums near a tie, near the product's negative, and of sizes that f32 just holds.
        for i in 0..1_000_000 {
            let near = |i| f32::from_bits(0x3f80_0000 | word(i) & 0xff | (word(i) >> 9) & 0x7f_f000);
            let (x, y) = (near(2 * i), near(2 * i + 1));
            let size = 2f32.powi((i % 60) as i32 - 30);
            for z in [-x * y, size, -size, x * y * size, f32::from_bits(word(i) & 0x80ff_ffff)] {
                same(x, y, z);
                same(x * 1e-20, y * 1e-19, z * 1e-38);
                same(x * 1e19, y * 1.5e19, z * 1e38);
            }
        }
    }
}
