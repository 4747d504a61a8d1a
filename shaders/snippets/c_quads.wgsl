// put_quad: writes v to c[at] to c[at + 3]; at is a multiple of 4.
@group(0) @binding(3) var<storage, read_write> c: array<vec4<f32>>;

fn put_quad(at: u32, last: u32, v: vec4<f32>) {
    c[at / 4u] = v;
}
