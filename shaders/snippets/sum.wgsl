// canonical: returns x, or +0 for a subnormal or a negative zero. The value is rebuilt from its bits, so that
// a product that goes in comes out rounded on its own.
fn canonical(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, (bits & 0x7f800000u) == 0u));
}

// sum_add: returns a + b as every sum adds: with canonical operands and a canonical result.
fn sum_add(a: f32, b: f32) -> f32 {
    return canonical(canonical(a) + canonical(b));
}

// max_of: returns the larger one.
fn max_of(a: f32, b: f32) -> f32 {
    return select(a, b, b > a);
}
