//! The functions `exp_` and `log_` of the kernels, operation by operation, for native code that computes many
//! at once. `fma(x, y, z)` is what the kernels' `fma` computes: it rounds once or twice.

#![allow(clippy::approx_constant, reason = "the constants are those of the kernels")]

/// Returns e^x.
#[inline(always)]
pub(super) fn exp(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
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
pub(super) fn log(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
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
