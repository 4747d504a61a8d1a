// matmul_tiles: the product of snippets/product.wgsl, computed through workgroup memory on GPUs.
// A workgroup computes a tile of TILE rows and TILE columns, SIDE rows and columns an invocation, from slabs
// of 16 steps in workgroup memory. Each invocation reads a block of four by four of the slab of a or of b, or
// one of both where there are half as many, and it reads the next slab's while it computes from this one's.
// The sums are named variables and not an array, since some compilers put arrays into memory.
// Grid: x: tiles of TILE columns; y: tiles of TILE rows; z: batch * chunks, or groups of joined shards. Every
// invocation reaches every barrier.
// Constants: TILE and SIDE: 128 and 8, 64 and 8, or 32 and 4; IN_TURNS, whether there is an epilogue; and
// those of product.wgsl.
// Functions from other files: whole_tile and whole_part, by whether a workgroup computes several chunks;
// multiply and main, by what multiplies: slabs.wgsl, or units.wgsl for matrix units.

// The invocations in a row of the tile, and those of the workgroup.
const LANES: u32 = TILE / SIDE;
const INVOCATIONS: u32 = LANES * LANES;
// Whether an invocation reads blocks of both operands.
const BOTH: bool = INVOCATIONS == TILE;

// The part of the tile that an invocation computes. c0 to c7: rows of the first four columns, four side by
// side and four LANES fours below; d0 to d7: the same rows of the columns LANES fours further on. Where SIDE
// is 4 there are c0 to c3 alone.
struct Tile {
    c0: vec4<f32>, d0: vec4<f32>,
    c1: vec4<f32>, d1: vec4<f32>,
    c2: vec4<f32>, d2: vec4<f32>,
    c3: vec4<f32>, d3: vec4<f32>,
    c4: vec4<f32>, d4: vec4<f32>,
    c5: vec4<f32>, d5: vec4<f32>,
    c6: vec4<f32>, d6: vec4<f32>,
    c7: vec4<f32>, d7: vec4<f32>,
}

// The number of this invocation in its workgroup.
var<private> t: u32;

fn clean(a: Tile) -> Tile {
    return Tile(
        canonical(a.c0), canonical(a.d0),
        canonical(a.c1), canonical(a.d1),
        canonical(a.c2), canonical(a.d2),
        canonical(a.c3), canonical(a.d3),
        canonical(a.c4), canonical(a.d4),
        canonical(a.c5), canonical(a.d5),
        canonical(a.c6), canonical(a.d6),
        canonical(a.c7), canonical(a.d7),
    );
}

fn add(to: ptr<function, Tile>, tile: ptr<function, Tile>) {
    let a = *to;
    let b = clean(*tile);
    *to = Tile(
        kept(a.c0) + b.c0, kept(a.d0) + b.d0,
        kept(a.c1) + b.c1, kept(a.d1) + b.d1,
        kept(a.c2) + b.c2, kept(a.d2) + b.d2,
        kept(a.c3) + b.c3, kept(a.d3) + b.d3,
        kept(a.c4) + b.c4, kept(a.d4) + b.d4,
        kept(a.c5) + b.c5, kept(a.d5) + b.d5,
        kept(a.c6) + b.c6, kept(a.d6) + b.d6,
        kept(a.c7) + b.c7, kept(a.d7) + b.d7,
    );
}

// Writes the tile, whose first row and column in c are i0 and j0. Half of an invocation's SIDE rows are
// written in a turn, after which the rest of its tile moves up: an index that changes from turn to turn would
// move the tile out of registers. With an epilogue, IN_TURNS, a compiler cannot know the number of turns and
// does not write them out: one after another, the epilogues of all rows would be more code than the
// instruction cache of a GPU holds. Turns whose rows or columns are not there are left out then.
fn put(own: Part, i0: u32, j0: u32, tile: Tile) {
    let k = 4u * LANES;
    let i = i0 + t / LANES * 4u;
    let j = j0 + t % LANES * 4u;
    var rest = tile;
    var turns = SIDE / 2u;
    if IN_TURNS && SIDE == 8u { turns = 2u * min(2u, (params.n - j0 + k - 1u) / k); }
    if IN_TURNS && SIDE == 4u { turns = min(2u, (params.m - i0 + 1u) / 2u); }
    for (var turn = 0u; turn < turns; turn++) {
        if SIDE == 8u {
            let row = i + turn % 2u * k;
            let column = j + turn / 2u * k;
            put_row(own, row + 0u, column, rest.c0);
            put_row(own, row + 1u, column, rest.c1);
            put_row(own, row + 2u, column, rest.c2);
            put_row(own, row + 3u, column, rest.c3);
            rest.c0 = rest.c4; rest.c1 = rest.c5; rest.c2 = rest.c6; rest.c3 = rest.c7;
            rest.c4 = rest.d0; rest.c5 = rest.d1; rest.c6 = rest.d2; rest.c7 = rest.d3;
            rest.d0 = rest.d4; rest.d1 = rest.d5; rest.d2 = rest.d6; rest.d3 = rest.d7;
        } else {
            put_row(own, i + 2u * turn + 0u, j, rest.c0);
            put_row(own, i + 2u * turn + 1u, j, rest.c1);
            rest.c0 = rest.c2; rest.c1 = rest.c3;
        }
    }
}

// Computes the tile of this workgroup.
fn compute(group: vec3<u32>) {
    let i0 = group.y * TILE;
    let j0 = group.x * TILE;
    let tile = whole_tile(group.z, i0, j0);
    put(whole_part(group.z), i0, j0, tile);
}
