// put_quad: c[at] to c[at + 3] = v rounded to f16; at is a multiple of 4. Kept: f16, or f32 where it is not stored as such.
@group(0) @binding(3) var<storage, read_write> c: array<vec4<Kept>>;

fn put_quad(at: u32, last: u32, v: vec4<f32>) {
    let sums = canonical(v);
    c[at / 4u] = vec4<Kept>(vec4<f32>(round_half(sums.x), round_half(sums.y), round_half(sums.z), round_half(sums.w)));
}
