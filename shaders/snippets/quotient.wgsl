// quotient: returns a / b, correctly rounded whatever the device's own division is worth.
//
// A device's 1 / x may be off by several units in the last place (ULP), and its compiler may turn x / 72 into
// x * (1 / 72). So both are only a first guess here: integers decide, and neither contraction nor the kind of
// fma() changes a bit. A guess that is off by up to 8 ULP is mended.
//
// Subnormal operands count as 0, and subnormal results are +0. Operands that are 0, infinite or not a number
// give what IEEE 754 says, except that a NaN is 0x7FC00000, and a zero +0.
fn quotient(a: f32, b: f32) -> f32 {
    let p = bitcast<u32>(a);
    let q = bitcast<u32>(b);
    let sign = (p ^ q) & 0x80000000u;
    let exponent_a = (p >> 23u) & 255u;
    let exponent_b = (q >> 23u) & 255u;
    if max(exponent_a - 1u, exponent_b - 1u) >= 254u {
        var special = select(sign | 0x7F800000u, 0u, exponent_a == 0u || exponent_b == 255u);
        let both = max(exponent_a, exponent_b) == 0u || min(exponent_a, exponent_b) == 255u;
        special = select(special, 0x7FC00000u, both || max(p << 1u, q << 1u) > 0xFF000000u);
        return bitcast<f32>(special);
    }
    // The significands m and n lie in [2^23, 2^24). The quotient k = m 2^(23 + up) / n does, too.
    let m = (p & 0x7FFFFFu) | 0x800000u;
    let n = (q & 0x7FFFFFu) | 0x800000u;
    let up = select(0u, 1u, m < n);
    // n as a number in [1, 2) 2^-1, and the guess from its reciprocal: the low bits of a number near 2^24.
    let reciprocal = 1.0 / bitcast<f32>(n + 0x3F000000u);
    let scaled = bitcast<f32>(m + (0x4A800000u + (up << 23u)));
    var k = (bitcast<u32>(fma(scaled, reciprocal, 16777216.0)) << 1u) - 0x97000000u;
    // What is left, modulo 2^32: it is small. One more step of the division with it.
    var rest = (m << (23u + up)) - k * n;
    let step = fma(f32(bitcast<i32>(rest)), reciprocal * 1.1920929e-7, 12582912.0);
    let more = bitcast<u32>(step) - 0x4B400000u;
    k += more;
    // k is off by one at most. To the nearest: twice what is left against n. A tie does not exist.
    rest = (rest - more * n) << 1u;
    k += select(0u, 1u, bitcast<i32>(rest) > bitcast<i32>(n));
    k -= select(0u, 1u, bitcast<i32>(rest + n) < 0);
    let exponent = bitcast<i32>(exponent_a - exponent_b - up) + 126;
    let magnitude = select(k + (bitcast<u32>(exponent) << 23u), 0x7F800000u, exponent >= 254);
    return bitcast<f32>(select(magnitude | sign, 0u, exponent < 0));
}
