// put_quad: writes v, rounded to f16, to c[at] to c[at + 3], but nothing after c[at + last].
// Type: Kept: f16, or f32 where the result is rounded to f16 but stored as f32.
@group(0) @binding(3) var<storage, read_write> c: array<Kept>;

fn put_quad(at: u32, last: u32, v: vec4<f32>) {
    c[at] = Kept(round_half(v.x));
    if last >= 1u { c[at + 1u] = Kept(round_half(v.y)); }
    if last >= 2u { c[at + 2u] = Kept(round_half(v.z)); }
    if last >= 3u { c[at + 3u] = Kept(round_half(v.w)); }
}
