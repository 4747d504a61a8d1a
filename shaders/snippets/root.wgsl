// root: returns the square root of x, correctly rounded whatever the device's own root is worth.
//
// As in quotient.wgsl the device's inverseSqrt is only a first guess, which may be off by up to 16 units in
// the last place, and integers decide. Subnormal numbers count as 0. The root of a zero is +0, of a number
// below 0 the NaN 0x7FC00000.
fn root(x: f32) -> f32 {
    let p = bitcast<u32>(x);
    if p - 0x800000u >= 0x7F000000u {
        let special = select(0x7FC00000u, p, p == 0x7F800000u);
        return bitcast<f32>(select(special, 0u, (p & 0x7FFFFFFFu) < 0x800000u));
    }
    // The significand m lies in [2^23, 2^24), and k = the root of m 2^(24 - odd) in the same range.
    let odd = (p >> 23u) & 1u;
    let m = (p & 0x7FFFFFu) | 0x800000u;
    let f = bitcast<f32>(m + 0x3F800000u - (odd << 23u));
    let inverse = inverseSqrt(f);
    var k = (bitcast<u32>(fma(f * 8388608.0, inverse, 16777216.0)) << 1u) - 0x97000000u;
    // What is left, modulo 2^32, and one more step with it.
    var rest = (m << (24u - odd)) - k * k;
    let step = fma(f32(bitcast<i32>(rest)), inverse * 5.9604645e-8, 12582912.0);
    let more = bitcast<u32>(step) - 0x4B400000u;
    rest -= more * (2u * k + more);
    k += more;
    // k is off by one at most: (k + 1/2)^2 = k^2 + k + 1/4.
    let up = select(0u, 1u, bitcast<i32>(rest) > bitcast<i32>(k));
    let down = select(0u, 1u, bitcast<i32>(rest + k) <= 0);
    return bitcast<f32>(k + up - down + ((((p >> 23u) + 125u) >> 1u) << 23u));
}
