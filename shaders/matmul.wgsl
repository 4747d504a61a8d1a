// matmul: c[z, i, j] = sum over p of a[z, i, p] * b[z, p, j].   a: [m, k] or [k, m], b: [k, n] or [n, k], c: [m, n] each.
// The inner range of z comes from inner_range(z): all of k, or the rows of a shard (snippets/inner_*.wgsl).
// Order: p serial from +0 through fma inside a chunk of CHUNK; chunks > 1: chunk q of c goes to c[q * c_chunk + ...], and the
// tree kernel adds the chunks. Which invocation computes what does not show in the result.
// Grid: x: tiles of 8 * 4 columns, y: tiles of 8 * 4 rows, z: batch * chunks.
// Constants: CHUNK, TRANSPOSE_A, TRANSPOSE_B. Functions: inner_range.

struct Params {
    m: u32, n: u32, k: u32, chunks: u32,
    a_offset: u32, a_batch: u32, b_offset: u32, b_batch: u32,
    c_offset: u32, c_batch: u32, c_chunk: u32, rows_a_sample: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;

fn a_at(base: u32, i: u32, p: u32) -> f32 {
    if TRANSPOSE_A { return a[base + p * params.m + i]; }
    return a[base + i * params.k + p];
}

fn b_at(base: u32, p: u32, j: u32) -> f32 {
    if TRANSPOSE_B { return b[base + j * params.k + p]; }
    return b[base + p * params.n + j];
}

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let z = id.z / params.chunks;
    let q = id.z % params.chunks;
    let i0 = id.y * 4u;
    let j0 = id.x * 4u;
    if i0 >= params.m || j0 >= params.n { return; }
    let i = min(vec4<u32>(i0, i0 + 1u, i0 + 2u, i0 + 3u), vec4<u32>(params.m - 1u));
    let j = min(vec4<u32>(j0, j0 + 1u, j0 + 2u, j0 + 3u), vec4<u32>(params.n - 1u));
    let inner = inner_range(z);
    let start = inner.x + q * CHUNK;
    let end = min(inner.y, start + CHUNK);
    let a_base = params.a_offset + z * params.a_batch;
    let b_base = params.b_offset + z * params.b_batch;
    var c0 = vec4<f32>();
    var c1 = vec4<f32>();
    var c2 = vec4<f32>();
    var c3 = vec4<f32>();
    for (var p = start; p < end; p++) {
        let row = vec4<f32>(b_at(b_base, p, j.x), b_at(b_base, p, j.y), b_at(b_base, p, j.z), b_at(b_base, p, j.w));
        c0 = fma(vec4<f32>(a_at(a_base, i.x, p)), row, c0);
        c1 = fma(vec4<f32>(a_at(a_base, i.y, p)), row, c1);
        c2 = fma(vec4<f32>(a_at(a_base, i.z, p)), row, c2);
        c3 = fma(vec4<f32>(a_at(a_base, i.w, p)), row, c3);
    }
    let c_base = params.c_offset + q * params.c_chunk + z * params.c_batch;
    store_row(c_base, i0, j0, c0);
    store_row(c_base, i0 + 1u, j0, c1);
    store_row(c_base, i0 + 2u, j0, c2);
    store_row(c_base, i0 + 3u, j0, c3);
}

fn store_row(base: u32, i: u32, j0: u32, row: vec4<f32>) {
    if i >= params.m { return; }
    for (var d = 0u; d < min(4u, params.n - j0); d++) {
        c[base + i * params.n + j0 + d] = canonical(row[d]);
    }
}
