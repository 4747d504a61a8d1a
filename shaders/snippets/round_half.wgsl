// round_half: returns the nearest f16 as an f32; of two equally near ones the even one. Subnormal f16 are
// kept. From 65520 on the result is infinity; a NaN stays one. It computes with integers only, since the
// rounding of a driver's own conversion is up to the driver.
fn round_half(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    // Bits of the fraction that f16 lacks: 13, and one more for each power of two below its normal numbers.
    let drop = clamp(126u - min(size >> 23u, 126u), 13u, 23u);
    let unit = 1u << drop;
    let nearest = (size + (unit >> 1u) - 1u + ((size >> drop) & 1u)) & ~(unit - 1u);
    // Below the smallest one, 2^-24: more than half of it is nearer to it than to 0.
    let small = select(0u, 0x33800000u, size > 0x33000000u);
    var half = select(nearest, small, size < 0x33800000u);
    half = select(half, 0x7f800000u, half >= 0x47800000u);
    half = select(half, 0x7fc00000u, size > 0x7f800000u);
    return bitcast<f32>(half | (bits & 0x80000000u));
}
