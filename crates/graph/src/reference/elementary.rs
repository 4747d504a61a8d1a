//! Exp, log, tanh, erf and sigmoid on the host, bit for bit as `elementary.wgsl` computes them on a device.
//!
//! The constants and the order of operations are the same. Devices differ in how `fma()` rounds, which
//! [`Elementary::fused`] says. The table shows the greatest errors in units in the last place (ULP) of the
//! result, measured against f64 over every 17th float and over all floats from 2^-4 to 2^7, of both signs.
//! The last column is the bound that the tests check.
//!
//! | function | unfused | fused | bound  |
//! |----------|---------|-------|--------|
//! | exp      | 0.953   | 0.978 | 1      |
//! | log      | 0.952   | 0.934 | 1      |
//! | tanh     | 1.094   | 0.949 | 2      |
//! | erf      | 1.221   | 1.126 | 2      |
//! | sigmoid  | 2.402   | 2.402 | 3      |
//!
//! Subnormal arguments and results are zeros of the same sign. On a device whose division does not round
//! correctly, tanh and sigmoid may differ from the host's, and their error is larger by as much.

/// The elementary functions of one kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementary {
    /// Whether the device's `fma()` rounds once, as on GPUs. Otherwise it rounds the product and the sum, as
    /// on software adapters.
    pub fused: bool,
}

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7F80_0000;
const NAN: u32 = 0x7FC0_0000;
const SMALLEST_NORMAL: u32 = 0x0080_0000;
/// The bits of a float that raise its exponent by one.
const OCTAVE: i32 = 0x0080_0000;

/// ln 2 is the sum of this and `LN_2_LOW.0 * LN_2_LOW.1`. The product of an exponent and either part is
/// exact.
const LN_2_HIGH: f32 = 0.69314575;
const LN_2_LOW: (i32, f32) = (98_173, 1.4551915e-11);

// The coefficients of polynomials, highest power first.
const EXP: [f32; 6] = [0.00019740316, 0.0013935087, 0.00833357, 0.041666463, 0.16666666, 0.5];
const LOG: [f32; 9] =
    [-0.12874292, 0.13986707, -0.12188379, 0.1400534, -0.1668018, 0.20010445, -0.24999805, 0.33333215, -0.5];
const TANH: [f32; 7] =
    [-0.00035861123, 0.0023019298, -0.007946894, 0.021487199, -0.05387999, 0.13332348, -0.33333296];
const ERF: [f32; 6] = [-0.00061211915, 0.005015679, -0.026779678, 0.11282104, -0.37612513, 0.12837915];
const ERFC: [f32; 7] =
    [-0.00000936472, 0.00030433064, -0.003568256, 0.023607165, -0.10605955, -0.63525695, -1.1286229];

impl Elementary {
    /// Returns e^x, within 1 ULP. It is infinity above 88.7228, and 0 below -87.3365.
    pub fn exp(self, x: f32) -> f32 {
        let (bits, magnitude) = parts(x);
        let a = f32::from_bits(bits & SIGN | magnitude.min(0x42D0_0000));
        let n = (a * std::f32::consts::LOG2_E).round_ties_even();
        let (r, n) = (self.fma(n, -LN_2_HIGH, a), n as i32);
        let r = self.fma((n * LN_2_LOW.0) as f32, -LN_2_LOW.1, r);
        let q = self.polynomial(r, &EXP);
        let mantissa = (1.0 + self.fma(r * r, q, r)).to_bits() as i32;
        match (mantissa >> 23) + n {
            _ if is_nan(magnitude) => f32::from_bits(NAN),
            ..=0 => 0.0,
            255.. => f32::INFINITY,
            _ => f32::from_bits(mantissa.wrapping_add(n.wrapping_mul(OCTAVE)) as u32),
        }
    }

    /// Returns the natural logarithm, within 1 ULP. It is -infinity for 0 and for subnormals, NaN below 0,
    /// and infinity for infinity.
    pub fn log(self, x: f32) -> f32 {
        let (bits, magnitude) = parts(x);
        if magnitude < SMALLEST_NORMAL {
            return f32::NEG_INFINITY;
        }
        if bits > SIGN || is_nan(magnitude) {
            return f32::from_bits(NAN);
        }
        if magnitude == INFINITY {
            return x;
        }
        // 0x3F2AAAAB is 2/3; the arithmetic shift rounds k down.
        let k = (magnitude.wrapping_sub(0x3F2A_AAAB) as i32) >> 23;
        let f = f32::from_bits((magnitude as i32).wrapping_sub(k.wrapping_mul(OCTAVE)) as u32) - 1.0;
        let s = self.polynomial(f, &LOG);
        let low = self.fma((k * LN_2_LOW.0) as f32, LN_2_LOW.1, self.fma(f * f, s, f));
        self.fma(k as f32, LN_2_HIGH, low)
    }

    /// Returns the hyperbolic tangent, within 2 ULP. It is odd, and +-1 from 9.011 on.
    pub fn tanh(self, x: f32) -> f32 {
        let (bits, magnitude) = parts(x);
        let a = f32::from_bits(if magnitude < SMALLEST_NORMAL { 0 } else { magnitude.min(0x4180_0000) });
        let z = a * a;
        let y = if magnitude < 0x3F80_0000 {
            self.fma(a * z, self.polynomial(z, &TANH), a)
        } else {
            self.fma(-2.0, 1.0 / (1.0 + self.exp(2.0 * a)), 1.0)
        };
        f32::from_bits(if is_nan(magnitude) { NAN } else { y.to_bits() | bits & SIGN })
    }

    /// Returns the error function, within 2 ULP. It is odd, and +-1 from 3.9196 on.
    pub fn erf(self, x: f32) -> f32 {
        let (bits, magnitude) = parts(x);
        let sign = bits & SIGN;
        if magnitude < SMALLEST_NORMAL {
            return f32::from_bits(sign);
        }
        // An argument below 2^-96 is lifted by 2^64, so that no part of the sum is subnormal.
        let lift = if magnitude < 0x0F80_0000 { 0x2000_0000 } else { 0 };
        let a = f32::from_bits(magnitude.min(0x4080_0000) + lift);
        let y = if magnitude < 0x3F60_0000 {
            self.fma(a, self.polynomial(a * a, &ERF), a).to_bits() - lift
        } else {
            (1.0 - self.exp(a * self.polynomial(a, &ERFC))).to_bits()
        };
        f32::from_bits(if is_nan(magnitude) { NAN } else { y | sign })
    }

    /// Returns 1 / (1 + e^-x), within 3 ULP. It is 0 below -87.3365.
    pub fn sigmoid(self, x: f32) -> f32 {
        let (bits, magnitude) = parts(x);
        if is_nan(magnitude) {
            return f32::from_bits(NAN);
        }
        let e = self.exp(f32::from_bits(magnitude.min(0x42D0_0000) | SIGN));
        (if bits > SIGN { e } else { 1.0 }) / (1.0 + e)
    }

    fn polynomial(self, x: f32, coefficients: &[f32]) -> f32 {
        coefficients[1..].iter().fold(coefficients[0], |sum, &next| self.fma(x, sum, next))
    }

    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        if self.fused { a.mul_add(b, c) } else { a * b + c }
    }
}

/// Returns all bits of x, and the bits without the sign.
fn parts(x: f32) -> (u32, u32) {
    (x.to_bits(), x.to_bits() & !SIGN)
}

fn is_nan(magnitude: u32) -> bool {
    magnitude > INFINITY
}

#[cfg(test)]
mod tests {
    use super::Elementary;

    type Function = (&'static str, fn(Elementary, f32) -> f32, fn(f64) -> f64, f64);

    /// The functions with their f64 references and the bounds that the module documents, in ULP.
    const FUNCTIONS: [Function; 5] = [
        ("exp", Elementary::exp, f64::exp, 1.0),
        ("log", Elementary::log, f64::ln, 1.0),
        ("tanh", Elementary::tanh, f64::tanh, 2.0),
        ("erf", Elementary::erf, erf, 2.0),
        ("sigmoid", Elementary::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.0),
    ];

    /// Returns erf(x) by its Taylor series near 0, and by the continued fraction of its complement elsewhere.
    fn erf(x: f64) -> f64 {
        let z = x.abs();
        let scale = std::f64::consts::FRAC_2_SQRT_PI;
        let y = if z < 2.5 {
            let (mut term, mut sum, mut n) = (z, z, 0.0);
            while term.abs() > sum * 1e-13 {
                n += 1.0;
                term *= -z * z / n;
                sum += term / (2.0 * n + 1.0);
            }
            scale * sum
        } else {
            let fraction = (1..40).rev().fold(z, |tail, n| z + f64::from(n) / 2.0 / tail);
            1.0 - scale / 2.0 * (-z * z).exp() / fraction
        };
        y.copysign(x)
    }

    /// Returns |got - want| in units in the last place of want.
    /// It is 0 if want is no normal float and got is what stands for it.
    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = want as f32;
        if rounded.is_nan() || rounded.is_infinite() || want == 0.0 {
            return if got.to_bits() == rounded.to_bits() || got.is_nan() && want.is_nan() {
                0.0
            } else {
                1e9
            };
        }
        if want.abs() < f64::from(f32::MIN_POSITIVE) {
            return if got == 0.0 || got.abs() == f32::MIN_POSITIVE { 0.0 } else { 1e9 };
        }
        let exponent = (want.to_bits() >> 52 & 0x7FF) as i32 - 1023;
        (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
    }

    /// Returns 100,000 floats over all bit patterns, and 100,000 spread evenly where the functions are
    /// neither 0 nor saturated.
    fn samples() -> impl Iterator<Item = f32> {
        let all = (0..100_000u32).map(|i| f32::from_bits(i.wrapping_mul(42_949)));
        let hard = (0..100_000u32).map(|i| (i as f32 - 45_000.0) * 0.002);
        all.chain(hard).filter(|x| x.is_normal())
    }

    #[test]
    fn errors_stay_within_their_bounds() {
        for fused in [false, true] {
            for (name, function, reference, bound) in FUNCTIONS {
                let worst = samples()
                    .map(|x| (ulps(function(Elementary { fused }, x), reference(f64::from(x))), x))
                    .fold((0.0, 0.0), |worst, next| if next.0 > worst.0 { next } else { worst });
                println!("{name}, fused {fused}: {:.3} ULP at {:e}", worst.0, worst.1);
                assert!(worst.0 <= bound, "{name}, fused {fused}: {worst:?}");
            }
        }
    }

    #[test]
    fn limits_are_exact() {
        let (inf, tiny) = (f32::INFINITY, f32::from_bits(1));
        for e in [false, true].map(|fused| Elementary { fused }) {
            let limits = [
                (e.exp(inf), inf),
                (e.exp(88.7229), inf),
                (e.exp(-inf), 0.0),
                (e.exp(-87.34), 0.0),
                (e.log(0.0), -inf),
                (e.log(-0.0), -inf),
                (e.log(1.0), 0.0),
                (e.log(inf), inf),
                (e.tanh(-9.02), -1.0),
                (e.tanh(-0.0), -0.0),
                (e.tanh(-tiny), -0.0),
                (e.erf(-3.92), -1.0),
                (e.erf(-0.0), -0.0),
                (e.erf(tiny), 0.0),
                (e.sigmoid(inf), 1.0),
                (e.sigmoid(-inf), 0.0),
                (e.sigmoid(0.0), 0.5),
            ];
            for (index, (got, want)) in limits.into_iter().enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "limit {index}: {got} for {want}");
            }
            assert!(e.log(-1.0).is_nan() && e.log(-inf).is_nan());
            for (name, function, ..) in FUNCTIONS {
                assert!(function(e, f32::NAN).is_nan() && function(e, -f32::NAN).is_nan(), "{name}");
            }
            for x in samples() {
                assert_eq!(e.tanh(-x), -e.tanh(x));
                assert_eq!(e.erf(-x), -e.erf(x));
            }
        }
    }
}
