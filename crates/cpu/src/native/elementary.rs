//! The functions `exp_` and `log_` of the kernels, operation by operation, for native code that computes many
//! at once. `fma(x, y, z)` is what the kernels' `fma` computes: it rounds once or twice.

#![allow(clippy::approx_constant, reason = "the constants are those of the kernels")]

/// Returns e^x.
#[inline(always)]
pub(crate) fn exp(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let a = f32::from_bits(bits & 0x8000_0000 | magnitude.min(0x42d0_0000));
    let n = (a * 1.442_695).round_ties_even();
    // SAFETY: `a` is a number of magnitude 104 at most, so `n` is one of 151 at most.
    #[expect(unsafe_code, reason = "one instruction, which vectors have as well")]
    let whole: i32 = unsafe { n.to_int_unchecked() };
    let r = fma(whole.wrapping_mul(98173) as f32, -1.455_191_5e-11, fma(n, -0.693_145_75, a));
    let mut q = fma(r, 0.000_197_403_16, 0.001_393_508_7);
    q = fma(r, q, 0.008_333_57);
    q = fma(r, q, 0.041_666_463);
    q = fma(r, q, 0.166_666_66);
    q = fma(r, q, 0.5);
    let mantissa = (1.0 + fma(r * r, q, r)).to_bits() as i32;
    let scaled = mantissa.wrapping_add(whole.wrapping_mul(0x80_0000));
    let exponent = (mantissa >> 23).wrapping_add(whole);
    let result = if exponent <= 0 { 0 } else { scaled as u32 };
    let result = if exponent >= 255 { 0x7f80_0000 } else { result };
    f32::from_bits(if magnitude > 0x7f80_0000 { 0x7fc0_0000 } else { result })
}

/// Returns the natural logarithm of x.
#[inline(always)]
pub(crate) fn log(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let k = (magnitude.wrapping_sub(0x3f2a_aaab) as i32) >> 23;
    let f = f32::from_bits((magnitude as i32).wrapping_sub(k.wrapping_mul(0x80_0000)) as u32) - 1.0;
    let mut s = fma(f, -0.128_742_92, 0.139_867_07);
    s = fma(f, s, -0.121_883_79);
    s = fma(f, s, 0.140_053_4);
    s = fma(f, s, -0.166_801_8);
    s = fma(f, s, 0.200_104_45);
    s = fma(f, s, -0.249_998_05);
    s = fma(f, s, 0.333_332_15);
    s = fma(f, s, -0.5);
    let low = fma(k.wrapping_mul(98173) as f32, 1.455_191_5e-11, fma(f * f, s, f));
    let mut result = fma(k as f32, 0.693_145_75, low).to_bits();
    if magnitude == 0x7f80_0000 {
        result = bits;
    }
    if bits > 0x8000_0000 || magnitude > 0x7f80_0000 {
        result = 0x7fc0_0000;
    }
    f32::from_bits(if magnitude < 0x80_0000 { 0xff80_0000 } else { result })
}

/// Returns the hyperbolic tangent of x.
#[inline(always)]
pub(crate) fn tanh(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let a = f32::from_bits(if magnitude < 0x80_0000 { 0 } else { magnitude.min(0x4180_0000) });
    let z = a * a;
    let mut p = fma(z, -0.000_358_611_23, 0.002_301_929_8);
    p = fma(z, p, -0.007_946_894);
    p = fma(z, p, 0.021_487_199);
    p = fma(z, p, -0.053_879_99);
    p = fma(z, p, 0.133_323_48);
    p = fma(z, p, -0.333_332_96);
    let near = fma(a * z, p, a);
    let far = fma(-2.0, 1.0 / (1.0 + exp(2.0 * a, fma)), 1.0);
    let result = (if magnitude < 0x3f80_0000 { near } else { far }).to_bits() | bits & 0x8000_0000;
    f32::from_bits(if magnitude > 0x7f80_0000 { 0x7fc0_0000 } else { result })
}

/// Returns the error function of x.
#[inline(always)]
pub(crate) fn erf(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let lift = if magnitude < 0x0f80_0000 { 0x2000_0000 } else { 0 };
    let a = f32::from_bits(if magnitude < 0x80_0000 { 0 } else { magnitude.min(0x4080_0000) + lift });
    let z = a * a;
    let mut q = fma(z, -0.000_612_119_15, 0.005_015_679);
    q = fma(z, q, -0.026_779_678);
    q = fma(z, q, 0.112_821_04);
    q = fma(z, q, -0.376_125_13);
    q = fma(z, q, 0.128_379_15);
    let near = fma(a, q, a).to_bits();
    let mut g = fma(a, -0.000_009_364_72, 0.000_304_330_64);
    g = fma(a, g, -0.003_568_256);
    g = fma(a, g, 0.023_607_165);
    g = fma(a, g, -0.106_059_55);
    g = fma(a, g, -0.635_256_95);
    g = fma(a, g, -1.128_622_9);
    let far = (1.0 - exp(a * g, fma)).to_bits();
    let small = if magnitude < 0x80_0000 { 0 } else { near.wrapping_sub(lift) };
    let result = (if magnitude < 0x3f60_0000 { small } else { far }) | bits & 0x8000_0000;
    f32::from_bits(if magnitude > 0x7f80_0000 { 0x7fc0_0000 } else { result })
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let e = exp(f32::from_bits(magnitude.min(0x42d0_0000) | 0x8000_0000), fma);
    let y = (if bits > 0x8000_0000 { e } else { 1.0 }) / (1.0 + e);
    f32::from_bits(if magnitude > 0x7f80_0000 { 0x7fc0_0000 } else { y.to_bits() })
}
