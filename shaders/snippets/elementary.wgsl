// elementary: exp_, log_, tanh_, erf_, sigmoid: functions on which drivers disagree, with the same bits
// wherever fma() is the same.
//
// The host twin is unisono-graph's elementary.rs, with the same constants and the same order of operations.
// The bounds below are in units in the last place (ULP) of the result. The twin's tests check them against
// f64, for an fma() that rounds once and for one that rounds twice. tanh_ and sigmoid divide through
// quotient.wgsl, which rounds correctly.
//
// Arguments are read through their integer bits and results are built from theirs, so that an argument may be
// a product and a result never is one. Subnormal arguments and results are zeros of the same sign. A NaN
// gives the NaN 0x7FC00000. NaN and infinity are detected and built as bits, since WGSL lets a compiler
// assume that neither occurs.
//
// ln 2 is 0.69314575 + 98173 / 2^36, where exponents times either part are exact. The second part goes
// through an integer, since Mesa turns fma(n, a, fma(n, b, c)) into n * (a + b) + c.

// e^x for every x, within 1 ULP. Above 88.7228: infinity; below -87.3365: 0.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial of degree 7; n goes into the exponent bits.
fn exp_(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    // At +-104 the answer is infinity or 0 already; n stays small.
    let a = bitcast<f32>((bits & 0x80000000u) | min(magnitude, 0x42D00000u));
    let n = round(a * 1.442695);
    let r = fma(f32(i32(n) * 98173), -1.4551915e-11, fma(n, -0.69314575, a));
    var q = fma(r, 0.00019740316, 0.0013935087);
    q = fma(r, q, 0.00833357);
    q = fma(r, q, 0.041666463);
    q = fma(r, q, 0.16666666);
    q = fma(r, q, 0.5);
    let mantissa = bitcast<i32>(1.0 + fma(r * r, q, r));
    let scaled = mantissa + i32(n) * 0x800000;
    let exponent = (mantissa >> 23u) + i32(n);
    var result = select(bitcast<u32>(scaled), 0u, exponent <= 0);
    result = select(result, 0x7F800000u, exponent >= 255);
    return bitcast<f32>(select(result, 0x7FC00000u, magnitude > 0x7F800000u));
}

// The natural logarithm of x, within 1 ULP. Of 0 and of subnormals: -infinity; below 0: NaN; of infinity:
// infinity.
// x = 2^k m with m in [2/3, 4/3); ln m by a polynomial of degree 10 in f = m - 1, which is exact.
fn log_(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    // 0x3F2AAAAB is 2/3; the arithmetic shift rounds k down.
    let k = bitcast<i32>(magnitude - 0x3F2AAAABu) >> 23u;
    let f = bitcast<f32>(bitcast<i32>(magnitude) - k * 0x800000) - 1.0;
    var s = fma(f, -0.12874292, 0.13986707);
    s = fma(f, s, -0.12188379);
    s = fma(f, s, 0.1400534);
    s = fma(f, s, -0.1668018);
    s = fma(f, s, 0.20010445);
    s = fma(f, s, -0.24999805);
    s = fma(f, s, 0.33333215);
    s = fma(f, s, -0.5);
    let low = fma(f32(k * 98173), 1.4551915e-11, fma(f * f, s, f));
    var result = bitcast<u32>(fma(f32(k), 0.69314575, low));
    result = select(result, bits, magnitude == 0x7F800000u);
    result = select(result, 0x7FC00000u, bits > 0x80000000u || magnitude > 0x7F800000u);
    return bitcast<f32>(select(result, 0xFF800000u, magnitude < 0x800000u));
}

// The hyperbolic tangent for every x, within 2 ULP; odd; +-1 from 9.011 on.
// Below 1 an odd polynomial of degree 15; above, 1 - 2 / (e^2x + 1).
fn tanh_(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    // From 16 on the answer is 1.
    let a = bitcast<f32>(select(min(magnitude, 0x41800000u), 0u, magnitude < 0x800000u));
    let z = a * a;
    var p = fma(z, -0.00035861123, 0.0023019298);
    p = fma(z, p, -0.007946894);
    p = fma(z, p, 0.021487199);
    p = fma(z, p, -0.05387999);
    p = fma(z, p, 0.13332348);
    p = fma(z, p, -0.33333296);
    let near = fma(a * z, p, a);
    let far = fma(-2.0, quotient(1.0, 1.0 + exp_(2.0 * a)), 1.0);
    let result = bitcast<u32>(select(far, near, magnitude < 0x3F800000u)) | (bits & 0x80000000u);
    return bitcast<f32>(select(result, 0x7FC00000u, magnitude > 0x7F800000u));
}

// The error function for every x, within 2 ULP; odd; +-1 from 3.9196 on.
// Below 7/8 an odd polynomial of degree 11; above, 1 - e^(a g(a)) with g of degree 6.
fn erf_(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    // Below 2^-96 computed 2^64 times as large, so that no part of the sum is subnormal.
    let lift = select(0u, 0x20000000u, magnitude < 0x0F800000u);
    // From 4 on the answer is 1.
    let a = bitcast<f32>(select(min(magnitude, 0x40800000u) + lift, 0u, magnitude < 0x800000u));
    let z = a * a;
    var q = fma(z, -0.00061211915, 0.005015679);
    q = fma(z, q, -0.026779678);
    q = fma(z, q, 0.11282104);
    q = fma(z, q, -0.37612513);
    q = fma(z, q, 0.12837915);
    let near = bitcast<u32>(fma(a, q, a));
    var g = fma(a, -0.00000936472, 0.00030433064);
    g = fma(a, g, -0.003568256);
    g = fma(a, g, 0.023607165);
    g = fma(a, g, -0.10605955);
    g = fma(a, g, -0.63525695);
    g = fma(a, g, -1.1286229);
    let far = bitcast<u32>(1.0 - exp_(a * g));
    let small = select(near - lift, 0u, magnitude < 0x800000u);
    let result = select(far, small, magnitude < 0x3F600000u) | (bits & 0x80000000u);
    return bitcast<f32>(select(result, 0x7FC00000u, magnitude > 0x7F800000u));
}

// 1 / (1 + e^-x) for every x, within 3 ULP. Below -87.3365: 0.
// As e^-|x|, at most 1, over 1 + e^-|x|, or as 1 over it: the divisor lies in [1, 2].
fn sigmoid(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7FFFFFFFu;
    let e = exp_(bitcast<f32>(min(magnitude, 0x42D00000u) | 0x80000000u));
    let y = quotient(select(1.0, e, bits > 0x80000000u), 1.0 + e);
    return bitcast<f32>(select(bitcast<u32>(y), 0x7FC00000u, magnitude > 0x7F800000u));
}
