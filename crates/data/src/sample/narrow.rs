//! Numbers that become f32, and those that f32 does not hold.

/// The whole number up to which f32 holds all of them: 2^24.
const ALL_WHOLE: f64 = 16_777_216.0;
/// The most that rounding to f32 changes a number in the range of f32, as a share of it: 2^-24.
const ROUNDED: f64 = 1.0 / ALL_WHOLE;

/// Returns a number as an f32, or `None` where f32 does not hold it: beyond 2^24, where f32 lacks whole
/// numbers, one that is not represented exactly; and one that is out of the range of f32, so that more than
/// the digits after the seventh would be lost. NaN and infinities stay what they are.
pub(crate) fn kept(value: f64) -> Option<f32> {
    let narrow = value as f32;
    let back = f64::from(narrow);
    let is_rounded = || value.abs() <= ALL_WHOLE && (back - value).abs() <= value.abs() * ROUNDED;
    (!value.is_finite() || back == value || is_rounded()).then_some(narrow)
}

/// Returns a whole number as an f32, or `None` where f32 does not represent it exactly.
pub(crate) fn kept_whole(value: i128) -> Option<f32> {
    let narrow = value as f32;
    (narrow as i128 == value).then_some(narrow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f32_holds() {
        for value in
            [0.0, -0.0, 0.1, 1.0 / 3.0, 16_777_215.3, 16_777_216.0, 16_777_218.0, 1e-30, f64::INFINITY]
        {
            assert_eq!(kept(value), Some(value as f32), "{value}");
        }
        assert!(kept(f64::NAN).is_some_and(f32::is_nan));
        for value in [16_777_217.0, 1_700_000_001.0, 1_700_000_001.25, -123_456_789.5, 1e39, 1e-50, 1e-42] {
            assert_eq!(kept(value), None, "{value}");
        }
        assert_eq!(kept(f64::from(f32::MAX)), Some(f32::MAX));
        assert_eq!(kept(f64::from(f32::from_bits(1))), Some(f32::from_bits(1)));
        for (value, is_kept) in
            [(16_777_216, true), (16_777_217, false), (-16_777_218, true), (1 << 40, true)]
        {
            assert_eq!(kept_whole(value).is_some(), is_kept, "{value}");
        }
        // As f64 both would be 2^53, which f32 has.
        assert_eq!((kept_whole(1 << 53).is_some(), kept_whole((1 << 53) + 1)), (true, None));
    }
}
