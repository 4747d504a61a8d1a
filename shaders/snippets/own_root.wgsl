// root: root.wgsl for devices whose own square root is known to round correctly. Its operand is hidden from
// the compiler, which would make inverseSqrt(x) of 1 / sqrt(x).
fn root(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(sqrt(x)) ^ params.zero);
}
