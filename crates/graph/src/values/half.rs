//! The numbers that f16 holds: which f32 values they are, and the nearest of them.
//!
//! Mixed precision is a matter of values: operands of products are rounded to numbers that f16 holds
//! ([`crate::ops::RoundHalf`]). No bit of a result depends on whether such a number is stored in two bytes or
//! in four.

/// Returns the nearest f16 as an f32, and of two equally near ones the even one. Subnormal numbers are kept,
/// numbers from 65520 on become infinity, and a NaN stays one. All of it is computed in integers, so that no
/// driver has a say; `shaders/snippets/round_half.wgsl` computes the same.
///
/// ```
/// use unisono_graph::half::round_half;
///
/// assert_eq!(round_half(0.1), 0.099_975_586);
/// assert_eq!(round_half(65_519.0), 65_504.0);
/// ```
pub fn round_half(x: f32) -> f32 {
    let (size, sign) = (x.to_bits() & 0x7fff_ffff, x.to_bits() & 0x8000_0000);
    if size > 0x7f80_0000 {
        return f32::from_bits(0x7fc0_0000 | sign);
    }
    // Bits of the fraction that f16 lacks: 13, and one more for each power of two below its normal numbers.
    let exponent = size >> 23;
    let drop = 126u32.saturating_sub(exponent).clamp(13, 23);
    let unit = 1u32 << drop;
    let even = (size >> drop) & 1;
    let nearest = (size + (unit >> 1) - 1 + even) & !(unit - 1);
    let half = match size {
        0x3380_0000.. if nearest >= 0x4780_0000 => 0x7f80_0000,
        0x3380_0000.. => nearest,
        // Below the smallest one, 2^-24: more than half of it is nearer to it than to 0.
        0x3300_0001.. => 0x3380_0000,
        _ => 0,
    };
    f32::from_bits(half | sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn check(bits: u32) {
        let x = f32::from_bits(bits);
        let (ours, theirs) = (round_half(x), f16::from_f32_const(x).to_f32());
        let same = ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan() && theirs.is_nan();
        assert!(same, "{bits:08x}: {ours:e} and {theirs:e}");
        assert_eq!(round_half(ours).to_bits(), ours.to_bits(), "{bits:08x} twice");
    }

    #[test]
    fn rounding_is_that_of_ieee_754() {
        // Each f16 of either sign, halfway to the next, and the f32 values around both.
        for half in 0..=u16::MAX {
            let value = |bits| f64::from(f16::from_bits(bits).to_f32_const());
            let (low, high) = (value(half), value(half.wrapping_add(1)));
            for base in [low as f32, ((low + high) / 2.0) as f32] {
                (base.to_bits().saturating_sub(2)..=base.to_bits().saturating_add(2)).for_each(check);
            }
        }
        (0..=u32::MAX).step_by(9_973).for_each(check);
    }
}
