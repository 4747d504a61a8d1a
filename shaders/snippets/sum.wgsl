// canonical: a subnormal or negative zero becomes +0. The value is rebuilt from its bits, so a product that goes in comes
// out rounded on its own.
fn canonical(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, (bits & 0x7f800000u) == 0u));
}

// sum_add: a + b as every sum adds: canonical operands, canonical result.
fn sum_add(a: f32, b: f32) -> f32 {
    return canonical(canonical(a) + canonical(b));
}

// max_of: the larger one.
fn max_of(a: f32, b: f32) -> f32 {
    return select(a, b, b > a);
}
