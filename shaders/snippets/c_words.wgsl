// put_quad: writes v to c[at] to c[at + 3], but nothing after c[at + last].
@group(0) @binding(3) var<storage, read_write> c: array<f32>;

fn put_quad(at: u32, last: u32, v: vec4<f32>) {
    c[at] = v.x;
    if last >= 1u { c[at + 1u] = v.y; }
    if last >= 2u { c[at + 2u] = v.z; }
    if last >= 3u { c[at + 3u] = v.w; }
}
