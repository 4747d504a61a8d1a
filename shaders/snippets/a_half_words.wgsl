// a_quad: returns the elements at to at + 3 of a, which is f16. Elements after at + last, which may not
// exist, are that of at + last.
@group(0) @binding(1) var<storage, read> a: array<f16>;

fn a_quad(at: u32, last: u32) -> vec4<f32> {
    let halves = vec4<f16>(a[at], a[at + min(last, 1u)], a[at + min(last, 2u)], a[at + min(last, 3u)]);
    return vec4<f32>(halves);
}
