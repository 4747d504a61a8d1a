// b_quad: returns the elements at to at + 3 of b, which is f16; at is a multiple of 4.
@group(0) @binding(2) var<storage, read> b: array<vec4<f16>>;

fn b_quad(at: u32, last: u32) -> vec4<f32> {
    return vec4<f32>(b[at / 4u]);
}
