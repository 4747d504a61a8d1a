// a_quad: returns the elements at to at + 3 of a; at is a multiple of 4.
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;

fn a_quad(at: u32, last: u32) -> vec4<f32> {
    return a[at / 4u];
}
