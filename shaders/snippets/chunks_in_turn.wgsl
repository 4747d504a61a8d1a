// whole_tile, whole_part: the tile of a layer, and where it goes, where a workgroup computes params.chunks
// chunks of a product, or the products of as many shards, in turn. What is added up so far waits in memory:
// a sum of 2^l of them at level l, at most one a level, so that the order is that of the tree. What an
// invocation stores there only that invocation reads.
// Constants: SHARDS: whether shards are added up and not chunks; LEVELS: the levels of the tree.
// Needs t, LANES and tiles of matmul_tiles.wgsl, and wait and waiting, which write and read four elements of
// a level, by their place in c and in a level.

fn turn_part(layer: u32, q: u32) -> Part {
    if SHARDS { return shard_part(layer, q); }
    return chunk_part(layer, q);
}

fn whole_part(layer: u32) -> Part {
    return turn_part(layer, 0u);
}

fn chunk_part(layer: u32, q: u32) -> Part {
    let z = params.first_z + layer;
    let inner = inner_range(z);
    let start = inner.x + q * CHUNK;
    return Part(
        params.a_offset + z * params.a_batch,
        params.b_offset + z * params.b_batch,
        params.c_offset + z * params.c_batch,
        start,
        min(inner.y, start + CHUNK),
    );
}

// The first element of the layer in a level.
var<private> first: u32;

fn wait_row(own: Part, level: u32, i: u32, j: u32, x: vec4<f32>) {
    let at = i * params.n + j;
    if i < params.m && j < params.n { wait(level, own.c + at, first + at, x); }
}

// Returns what waits for a row. A row that is not there has nothing: it must not read what is another
// invocation's.
fn waiting_row(own: Part, level: u32, i: u32, j: u32) -> vec4<f32> {
    let at = i * params.n + j;
    var row: vec4<f32>;
    if i < params.m && j < params.n { row = waiting(level, own.c + at, first + at); }
    return row;
}

// Returns the sums of what waits and four rows of a tile. The rows are read one behind the other, before the
// first of them is needed.
fn join_rows(own: Part, level: u32, i: u32, j: u32, rows: mat4x4<f32>) -> mat4x4<f32> {
    let a = waiting_row(own, level, i + 0u, j);
    let b = waiting_row(own, level, i + 1u, j);
    let c = waiting_row(own, level, i + 2u, j);
    let d = waiting_row(own, level, i + 3u, j);
    return mat4x4<f32>(
        canonical(a + rows[0]), canonical(b + rows[1]), canonical(c + rows[2]), canonical(d + rows[3]),
    );
}

fn wait_tile(own: Part, level: u32, i: u32, j: u32, tile: Tile) {
    let k = 4u * LANES;
    wait_row(own, level, i + 0u, j, tile.c0);
    wait_row(own, level, i + 1u, j, tile.c1);
    wait_row(own, level, i + 2u, j, tile.c2);
    wait_row(own, level, i + 3u, j, tile.c3);
    if SIDE == 8u {
        wait_row(own, level, i + k + 0u, j, tile.c4);
        wait_row(own, level, i + k + 1u, j, tile.c5);
        wait_row(own, level, i + k + 2u, j, tile.c6);
        wait_row(own, level, i + k + 3u, j, tile.c7);
        wait_row(own, level, i + 0u, j + k, tile.d0);
        wait_row(own, level, i + 1u, j + k, tile.d1);
        wait_row(own, level, i + 2u, j + k, tile.d2);
        wait_row(own, level, i + 3u, j + k, tile.d3);
        wait_row(own, level, i + k + 0u, j + k, tile.d4);
        wait_row(own, level, i + k + 1u, j + k, tile.d5);
        wait_row(own, level, i + k + 2u, j + k, tile.d6);
        wait_row(own, level, i + k + 3u, j + k, tile.d7);
    }
}

fn join_tile(own: Part, level: u32, i: u32, j: u32, tile: Tile) -> Tile {
    let k = 4u * LANES;
    var all = tile;
    let c = join_rows(own, level, i, j, mat4x4<f32>(tile.c0, tile.c1, tile.c2, tile.c3));
    all.c0 = c[0]; all.c1 = c[1]; all.c2 = c[2]; all.c3 = c[3];
    if SIDE == 8u {
        let e = join_rows(own, level, i + k, j, mat4x4<f32>(tile.c4, tile.c5, tile.c6, tile.c7));
        all.c4 = e[0]; all.c5 = e[1]; all.c6 = e[2]; all.c7 = e[3];
        let f = join_rows(own, level, i, j + k, mat4x4<f32>(tile.d0, tile.d1, tile.d2, tile.d3));
        all.d0 = f[0]; all.d1 = f[1]; all.d2 = f[2]; all.d3 = f[3];
        let g = join_rows(own, level, i + k, j + k, mat4x4<f32>(tile.d4, tile.d5, tile.d6, tile.d7));
        all.d4 = g[0]; all.d5 = g[1]; all.d6 = g[2]; all.d7 = g[3];
    }
    return all;
}

fn whole_tile(layer: u32, i0: u32, j0: u32) -> Tile {
    let own = whole_part(layer);
    first = (params.first_z + layer) * params.m * params.n;
    let i = i0 + t / LANES * 4u;
    let j = j0 + t % LANES * 4u;
    var tile: Tile;
    for (var q = 0u; q < params.chunks; q++) {
        multiply(turn_part(layer, q), i0, j0, &tile);
        tile = clean(tile);
        let is_last = q + 1u == params.chunks;
        for (var level = 0u; level < LEVELS; level++) {
            if (q >> level) % 2u == 1u {
                tile = join_tile(own, level, i, j, tile);
            } else if !is_last {
                wait_tile(own, level, i, j, tile);
                break;
            }
        }
    }
    return tile;
}
