//! Normal values by inverting the distribution function: one word, one value, the same bits everywhere.
//!
//! The quantile is Wichura's rational approximation (Applied Statistics 37, algorithm AS 241, PPND16), whose
//! relative error is about 1e-16. The logarithm that its tails need is a series computed here. Only `+ - * /
//! sqrt` are used.

/// Returns a standard normal value from one word: the quantile of (word + 1/2) / 2^32, rounded to f32.
///
/// It is symmetric about zero and never infinite: its magnitude is at most 6.34.
pub fn normal(word: u32) -> f32 {
    let q = from_half(word);
    quantile(q, 0.5 - q.abs()) as f32
}

/// Returns a standard normal value that lies within [-2, 2], from one word. Its standard deviation is 0.8796.
///
/// It is drawn by inversion, not by rejection, so that it too takes exactly one word.
pub fn truncated_normal(word: u32) -> f32 {
    /// The probability of [-2, 2] under the normal distribution.
    const INSIDE: f64 = 0.954_499_736_103_641_6;
    let q = INSIDE * from_half(word);
    (quantile(q, 0.5 - q.abs()) as f32).clamp(-2.0, 2.0)
}

/// Returns (word + 1/2) / 2^32 - 1/2, exactly. It is strictly between -1/2 and 1/2, and never zero.
fn from_half(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0 - 0.5
}

/// Returns the standard normal quantile: the x that a standard normal value stays below with probability `p`.
///
/// The relative error is below 4e-15 (tested against a 60-digit computation). p = 0 and 1 give minus and plus
/// infinity. Outside [0, 1] it is NaN.
#[cfg(test)]
fn normal_quantile(p: f64) -> f64 {
    quantile(p - 0.5, if p < 0.5 { p } else { 1.0 - p })
}

/// Returns the quantile of 1/2 + q, given also `tail` = 1/2 - |q|, which near the ends has digits that q
/// lacks.
fn quantile(q: f64, tail: f64) -> f64 {
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * polynomial(&CENTRE_OVER, r) / polynomial(&CENTRE_UNDER, r);
    }
    if tail == 0.0 {
        return if q < 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let r = (-ln(tail)).sqrt();
    let x = if r <= 5.0 {
        polynomial(&MIDDLE_OVER, r - 1.6) / polynomial(&MIDDLE_UNDER, r - 1.6)
    } else {
        polynomial(&FAR_OVER, r - 5.0) / polynomial(&FAR_UNDER, r - 5.0)
    };
    if q < 0.0 { -x } else { x }
}

/// Returns the natural logarithm of a positive, normal number, and NaN for others. The relative error is
/// below 4e-16 for x < 1/2.
///
/// With x = m 2^e, m in [sqrt(1/2), sqrt(2)), it uses ln m = 2 artanh s with s = (m - 1) / (m + 1), |s| <
/// 0.172. Twelve terms of the series leave less than 1e-19.
fn ln(x: f64) -> f64 {
    if !(f64::MIN_POSITIVE..=f64::MAX).contains(&x) {
        return f64::NAN;
    }
    let mantissa_bits = x.to_bits() & 0x000f_ffff_ffff_ffff;
    let mut exponent = (x.to_bits() >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(mantissa_bits | 0x3ff0_0000_0000_0000);
    if mantissa >= std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for term in (0..12).rev() {
        series = series * square + 1.0 / f64::from(2 * term + 1);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

/// Returns coefficients[0] + coefficients[1] x + ..., by Horner's rule.
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

// These are AS 241's coefficients, as published: numerator and denominator for the centre, the middle and the
// far tail.
const CENTRE_OVER: [f64; 8] = [
    3.387_132_872_796_366_5,
    133.141_667_891_784_38,
    1_971.590_950_306_551_3,
    13_731.693_765_509_46,
    45_921.953_931_549_87,
    67_265.770_927_008_7,
    33_430.575_583_588_13,
    2_509.080_928_730_122_7,
];
const CENTRE_UNDER: [f64; 8] = [
    1.0,
    42.313_330_701_600_91,
    687.187_007_492_057_9,
    5_394.196_021_424_751,
    21_213.794_301_586_597,
    39_307.895_800_092_71,
    28_729.085_735_721_943,
    5_226.495_278_852_854,
];
const MIDDLE_OVER: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    2.417_807_251_774_506e-1,
    2.272_384_498_926_918_4e-2,
    7.745_450_142_783_414e-4,
];
const MIDDLE_UNDER: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    6.897_673_349_851e-1,
    1.481_039_764_274_800_8e-1,
    1.519_866_656_361_645_7e-2,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const FAR_OVER: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    2.965_605_718_285_048_7e-1,
    2.653_218_952_657_612_4e-2,
    1.242_660_947_388_078_4e-3,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const FAR_UNDER: [f64; 8] = [
    1.0,
    5.998_322_065_558_88e-1,
    1.369_298_809_227_358e-1,
    1.487_536_129_085_061_5e-2,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the quantile, from a 60-digit computation.
    #[test]
    #[expect(clippy::excessive_precision, reason = "the table is given to more digits than f64 holds")]
    fn quantile_matches_the_table() {
        let table: [(f64, f64); 15] = [
            (1e-300, -37.047096299361199237),
            (1e-100, -21.273453560965324294),
            (1e-30, -11.46402468844361572),
            (1.1641532182693481e-10, -6.3379577545537892525),
            (1e-06, -4.7534243088228989573),
            (0.001, -3.0902323061678135354),
            (0.02275, -2.0000024438996039102),
            (0.0749, -1.4402382675279636631),
            (0.0751, -1.4388253927525399824),
            (0.25, -0.6744897501960817432),
            (0.4999, -0.00025066283008800749239),
            (0.6, 0.25334710313579974132),
            (0.925, 1.4395314709384562291),
            (0.975, 1.9599639845400538556),
            (0.999, 3.0902323061678132778),
        ];
        for (p, x) in table {
            let error = ((normal_quantile(p) - x) / x).abs();
            assert!(error < 4e-15, "p = {p}: {} instead of {x}", normal_quantile(p));
        }
        assert_eq!(normal_quantile(0.5), 0.0);
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        assert!(normal_quantile(-0.1).is_nan() && normal_quantile(1.1).is_nan());
        assert!(normal_quantile(f64::NAN).is_nan());
    }

    #[test]
    fn logarithm_is_close_to_the_platforms() {
        let mut x = 0.75f64;
        while x > 1e-300 {
            let error = ((ln(x) - x.ln()) / x.ln()).abs();
            assert!(error < 1e-15, "ln {x}");
            x *= 0.937;
        }
        assert!(ln(0.0).is_nan() && ln(-1.0).is_nan() && ln(f64::INFINITY).is_nan());
    }

    #[test]
    fn normal_is_symmetric_and_bounded() {
        for word in [0, 1, 12_345, 1 << 30, (1 << 31) - 1] {
            assert_eq!(normal(word), -normal(!word));
            assert_eq!(truncated_normal(word), -truncated_normal(!word));
        }
        assert!(normal(u32::MAX) < 6.34 && normal(u32::MAX) > 6.0);
        assert!(truncated_normal(u32::MAX) <= 2.0 && truncated_normal(u32::MAX) > 1.99);
    }
}
