// product: what the kernels of all products share: their sizes, and their operands in blocks of four by four.
//   c[z, i, j] = sum over p of a[z, i, p] * b[z, p, j].
// Shapes for each z: a: [m, k] or [k, m], b: [k, n] or [n, k], c: [m, n]. Stored rows are a_step and b_step
// apart.
// Order: within a chunk of CHUNK steps, p is serial from +0 through fma. With more than one chunk, chunk q of
// c goes to c[q * c_chunk + ...], and the tree kernel adds the chunks. Steps past the end add 0 * 0, which
// changes nothing: a chain from +0 never is -0 where products are rounded, and a -0 that fma may leave
// becomes +0 at the end (canonical).
// Constants:
//   CHUNK: the steps of a chunk.
//   RAGGED: whether inner ranges may begin or end inside a block of four steps.
//   JOIN: whether a layer is the tree over the products of up to eight shards, added in registers.
//   ACROSS: 0, or the columns of a sample, a multiple of four, where n goes over all samples: then c is
//     [sample, m, ACROSS].
// Functions from other files, or generated for the product: a_load and b_load by what the operands are views
// of, put_quad, inner_range, and finish, the epilogue (the map behind the product).
// Params: ProductParams of params.rs, and the starts s0 to s7 for the epilogue.

// The part of a product that one layer of the grid computes: the first elements of a, b and c, and the inner
// range.
struct Part { a: u32, b: u32, c: u32, start: u32, end: u32 }

fn part(layer: u32) -> Part {
    let z = (params.first_z + layer) / params.chunks;
    let q = (params.first_z + layer) % params.chunks;
    let inner = inner_range(z);
    let start = inner.x + q * CHUNK;
    return Part(
        params.a_offset + z * params.a_batch,
        params.b_offset + z * params.b_batch,
        params.c_offset + z * params.c_batch + q * params.c_chunk,
        start,
        min(inner.y, start + CHUNK),
    );
}

// Returns the step p, or the last one where p is beyond the end.
fn inside(own: Part, p: u32) -> u32 {
    return select(p, min(p, own.end - 1u), RAGGED);
}

// Adds four steps to the sums of one row and four columns: x is the row at p to p + 3, y[d] the columns at p
// + d.
fn four_steps(x: vec4<f32>, y: mat4x4<f32>, sums: vec4<f32>) -> vec4<f32> {
    return fma(x.wwww, y[3], fma(x.zzzz, y[2], fma(x.yyyy, y[1], fma(x.xxxx, y[0], sums))));
}

// Writes what the epilogue makes of the sums to c[i, j] to c[i, j + 3], as far as c goes. Where c has no such
// row or column, the epilogue computes the last ones again and nothing is written: so only stores are behind
// a branch, and a compiler may share loads and constants between rows.
fn put_row(own: Part, i: u32, j: u32, sums: vec4<f32>) {
    let is_there = (i < params.m) & (j < params.n);
    let inside = min(j, (params.n - 1u) / 4u * 4u);
    var width = params.n;
    var row = min(i, params.m - 1u);
    var column = inside;
    if ACROSS > 0u {
        width = max(ACROSS, 1u);
        row += inside / max(ACROSS, 1u) * params.m;
        column = inside % max(ACROSS, 1u);
    }
    let at = own.c + row * width + column;
    let last = width - 1u - column;
    let quad = finish(at, last, own.c / width + row, column, is_there, canonical(sums));
    if is_there { put_quad(at, last, quad); }
}

// Returns the part to which a layer's result is written.
fn target_part(layer: u32) -> Part {
    if JOIN { return shard_part(layer, 0u); }
    return part(layer);
}

// Returns the product of the layer's shard number s, with an empty inner range where there is no such shard.
fn shard_part(layer: u32, s: u32) -> Part {
    let z = params.first_z + layer;
    let shard = params.first_shard + z * params.join + s;
    let inner = inner_range(min(shard, params.end_shard - 1u));
    let end = select(inner.x, inner.y, shard < params.end_shard);
    return Part(params.a_offset, params.b_offset, params.c_offset + z * params.c_batch, inner.x, end);
}
