// put_quad: writes v, rounded to f16, to c[at] to c[at + 3]; at is a multiple of 4.
// Type: Kept: f16, or f32 where the result is rounded to f16 but stored as f32.
@group(0) @binding(3) var<storage, read_write> c: array<vec4<Kept>>;

fn put_quad(at: u32, last: u32, v: vec4<f32>) {
    c[at / 4u] = vec4<Kept>(vec4<f32>(round_half(v.x), round_half(v.y), round_half(v.z), round_half(v.w)));
}
