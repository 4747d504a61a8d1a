// b_quad: returns the elements at to at + 3 of b, which is f16. Elements after at + last, which may not
// exist, are that of at + last.
@group(0) @binding(2) var<storage, read> b: array<f16>;

fn b_quad(at: u32, last: u32) -> vec4<f32> {
    let halves = vec4<f16>(b[at], b[at + min(last, 1u)], b[at + min(last, 2u)], b[at + min(last, 3u)]);
    return vec4<f32>(halves);
}
