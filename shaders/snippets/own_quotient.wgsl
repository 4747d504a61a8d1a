// quotient: quotient.wgsl for devices whose own division is known to round correctly. The divisor is hidden
// from the compiler, which would make x * (1 / 72) of x / 72.
fn quotient(a: f32, b: f32) -> f32 {
    return a / bitcast<f32>(bitcast<u32>(b) ^ params.zero);
}
