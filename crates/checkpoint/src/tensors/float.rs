//! Conversions between float formats by integer arithmetic, so that they give the same bits on every machine.

use crate::tensors::info::TensorDType;

/// Returns the nearest f16, ties to even. From 65520 on that is infinity. A NaN stays one, quiet, with the
/// upper bits of its payload.
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 127;
    let fraction = bits & 0x007f_ffff;
    let magnitude = match exponent {
        128 if fraction != 0 => 0x7e00 | (fraction >> 13) as u16,
        16.. => 0x7c00,
        // Normal numbers: the carry of the rounding goes into the exponent, and from the largest number into
        // infinity, as it should.
        -14.. => round(((exponent + 15) as u32) << 23 | fraction, 13),
        // Subnormal numbers: the leading one moves down to where 2^-24 is the unit.
        -25.. => round(fraction | 0x0080_0000, (-1 - exponent) as u32),
        _ => 0,
    };
    sign | magnitude
}

/// Returns `value / 2^shift` rounded to nearest, ties to even.
fn round(value: u32, shift: u32) -> u16 {
    let (half, kept) = (1u32 << (shift - 1), value >> shift);
    let rest = value & (2 * half - 1);
    (kept + u32::from(rest > half || rest == half && kept & 1 == 1)) as u16
}

/// Returns the value of an f16, exactly.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x03ff));
    match exponent {
        0 => {
            let magnitude = fraction as f32 / 16_777_216.0;
            f32::from_bits(sign | magnitude.to_bits())
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Returns the elements as f32 values if they are floats. The values are exact, except that f64 is rounded to
/// nearest.
pub(crate) fn to_f32(dtype: TensorDType, bytes: &[u8]) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half));
    Some(match dtype {
        TensorDType::F32 => bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        TensorDType::F16 => halves().map(f16_to_f32).collect(),
        TensorDType::Bf16 => halves().map(|half| f32::from_bits(u32::from(half) << 16)).collect(),
        TensorDType::F64 => bytes.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word) as f32).collect(),
        _ => return None,
    })
}

/// Iterates over any elements as f64 values, as [`to_f64`] gives them. Few of them are in memory at once.
pub(crate) fn each_f64(dtype: TensorDType, bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.chunks(dtype.size() << 12).flat_map(move |block| to_f64(dtype, block))
}

/// Returns any elements as f64 values, for looking at them. The values are exact, except for 64-bit integers.
fn to_f64(dtype: TensorDType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|element| value(*element)).collect()
    }
    match dtype {
        TensorDType::Bool | TensorDType::U8 => each(bytes, |b| f64::from(u8::from_le_bytes(b))),
        TensorDType::I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        TensorDType::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        TensorDType::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        TensorDType::F16 => each(bytes, |b| f64::from(f16_to_f32(u16::from_le_bytes(b)))),
        TensorDType::Bf16 => {
            each(bytes, |b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)))
        }
        TensorDType::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        TensorDType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        TensorDType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        TensorDType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        TensorDType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        TensorDType::F64 => each(bytes, f64::from_le_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_comes_back() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            assert_eq!(
                value.to_bits(),
                f16::from_bits(bits).to_f32().to_bits() & !quieting(bits),
                "{bits:04x}"
            );
            assert_eq!(f32_to_f16(value), bits | (quieting(bits) >> 13) as u16, "{bits:04x}");
        }
    }

    /// The crate `half` quiets a signalling NaN when it widens it. Here that is done when narrowing.
    fn quieting(bits: u16) -> u32 {
        let signalling = f16::from_bits(bits).is_nan() && bits & 0x0200 == 0;
        if signalling { 0x0040_0000 } else { 0 }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            assert_eq!(f32_to_f16(value), f16::from_f32_const(value).to_bits(), "{bits:08x}");
        };
        // These are each f16 of either sign, the middle between it and the next, and the f32 values around
        // both.
        for half in 0..=u16::MAX {
            let (low, high) = (f16_to_f32(half), f16_to_f32(half.wrapping_add(1)));
            let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
            for base in [low.to_bits(), middle.to_bits()] {
                (base.saturating_sub(2)..=base.saturating_add(2)).for_each(check);
            }
        }
        (0..=u32::MAX).step_by(10_007).for_each(check);
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(-2f32.powi(-25)), 0x8000);
        assert_eq!(f32_to_f16(2f32.powi(-25) * 1.000_001), 1);
    }

    #[test]
    fn other_floats_widen() {
        assert_eq!(to_f32(TensorDType::Bf16, &[0x80, 0xbf]), Some(vec![-1.0]));
        assert_eq!(to_f32(TensorDType::F64, &0.1f64.to_le_bytes()), Some(vec![0.1]));
        assert_eq!(to_f32(TensorDType::I64, &[0; 8]), None);
    }
}
