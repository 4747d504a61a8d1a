// canonical: returns x, or +0 where the magnitude of x is at most 2^-126 (see flush.wgsl). The value is
// rebuilt from its bits, so that a product that goes in comes out rounded on its own.
fn canonical(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, bitcast<i32>(bits & 0x7fffffffu) <= 0x00800000));
}

// sum_add: returns a + b as every sum adds: with canonical operands and a canonical result.
fn sum_add(a: f32, b: f32) -> f32 {
    return canonical(canonical(a) + canonical(b));
}

// max_of: returns the larger one.
fn max_of(a: f32, b: f32) -> f32 {
    return select(a, b, b > a);
}
