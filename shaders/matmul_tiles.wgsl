// matmul_tiles: the product of snippets/product.wgsl, computed through workgroup memory on GPUs.
// A workgroup computes a tile of TILE rows and TILE columns, SIDE rows and columns an invocation, from slabs
// of 16 steps in workgroup memory. Each invocation reads a block of four by four of the slab of a or of b, or
// one of both where there are half as many, and it reads the next slab's while it computes from this one's.
// A step takes an invocation 2 * SIDE / 4 reads of workgroup memory for SIDE * SIDE multiply-adds. The fours
// of rows and columns that it takes lie LANES fours apart, so that its neighbours read side by side, and a
// slab's fours change places from step to step (`turned`), so that writing a slab has no bank conflicts
// either. The sums are named variables and not an array, since some compilers put arrays into memory.
// Grid: x: tiles of TILE columns; y: tiles of TILE rows; z: batch * chunks, or groups of joined shards. Every
// invocation reaches every barrier.
// Constants: TILE and SIDE: 128 and 8, 64 and 8, or 32 and 4; IN_TURNS, whether there is an epilogue; and
// those of product.wgsl.
// Functions from other files: whole_tile and whole_part, by whether a workgroup computes several chunks.

const SLAB: u32 = 16u;
// The invocations in a row of the tile, those of the workgroup, and the fours of a slab's step.
const LANES: u32 = TILE / SIDE;
const INVOCATIONS: u32 = LANES * LANES;
const FOURS: u32 = TILE / 4u;
// Whether an invocation reads blocks of both slabs.
const BOTH: bool = INVOCATIONS == TILE;

// slab[p * FOURS + turned(r, p)]: rows 4 r to 4 r + 3 of a at step p; behind these are the columns of b.
var<workgroup> slab: array<vec4<f32>, 2u * FOURS * SLAB>;
const BEHIND: u32 = FOURS * SLAB;

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

// Where a four lies in the slab's step p.
fn turned(four: u32, p: u32) -> u32 {
    return four ^ (p / 4u % 4u * 2u);
}

// Adds the products of one step, whose fours of a and b lie at these places of the slab.
fn step(tile: Tile, at_a: u32, at_b: u32) -> Tile {
    let x = slab[at_a];
    let y = slab[at_b];
    var next = tile;
    next.c0 = fma(x.xxxx, y, tile.c0);
    next.c1 = fma(x.yyyy, y, tile.c1);
    next.c2 = fma(x.zzzz, y, tile.c2);
    next.c3 = fma(x.wwww, y, tile.c3);
    if SIDE == 8u {
        let z = slab[at_a + LANES];
        let w = slab[at_b + LANES];
        next.c4 = fma(z.xxxx, y, tile.c4);
        next.c5 = fma(z.yyyy, y, tile.c5);
        next.c6 = fma(z.zzzz, y, tile.c6);
        next.c7 = fma(z.wwww, y, tile.c7);
        next.d0 = fma(x.xxxx, w, tile.d0);
        next.d1 = fma(x.yyyy, w, tile.d1);
        next.d2 = fma(x.zzzz, w, tile.d2);
        next.d3 = fma(x.wwww, w, tile.d3);
        next.d4 = fma(z.xxxx, w, tile.d4);
        next.d5 = fma(z.yyyy, w, tile.d5);
        next.d6 = fma(z.zzzz, w, tile.d6);
        next.d7 = fma(z.wwww, w, tile.d7);
    }
    return next;
}

// Adds the products of four steps from p on, in which the slab's fours lie in the same order.
fn four_of(tile: Tile, p: u32) -> Tile {
    let a = p * FOURS + turned(t / LANES, p);
    let b = BEHIND + p * FOURS + turned(t % LANES, p);
    let half = step(step(tile, a, b), a + FOURS, b + FOURS);
    return step(step(half, a + 2u * FOURS, b + 2u * FOURS), a + 3u * FOURS, b + 3u * FOURS);
}

// Returns the block that this invocation puts into the slab: four steps from p on of a's rows, or of b's
// columns. It is 0 from the end of the inner range on.
fn read_block(own: Part, rows: ARows, columns: BColumns, p: u32, is_a: bool) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    if p < own.end {
        if is_a { block = transpose(a_block(own, rows, p)); } else { block = b_block(own, p, columns); }
    }
    return block;
}

// Puts a block into the slab, a four for each step.
fn put_block(to: u32, block: mat4x4<f32>) {
    for (var d = 0u; d < 4u; d++) { slab[to + d * FOURS] = block[d]; }
}

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    // The block that this invocation reads: four rows or columns, four steps.
    let block = t % TILE / 4u;
    let steps = t % 4u * 4u;
    let is_a = BOTH || t < TILE;
    let to = select(BEHIND, 0u, is_a) + steps * FOURS + turned(block, steps);
    var rows: ARows;
    var columns: BColumns;
    if is_a { rows = a_rows(own, i0 + 4u * block); }
    if BOTH || !is_a { columns = b_columns(own, j0 + 4u * block); }
    var tile: Tile;
    var read = read_block(own, rows, columns, own.start + steps, is_a);
    for (var p = own.start; p < own.end; p += SLAB) {
        workgroupBarrier();
        put_block(to, read);
        if BOTH { put_block(to + BEHIND, read_block(own, rows, columns, p + steps, false)); }
        workgroupBarrier();
        read = read_block(own, rows, columns, p + SLAB + steps, is_a);
        for (var q = 0u; q < SLAB; q += 4u) { tile = four_of(tile, q); }
    }
    *sums = tile;
}

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

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    let i0 = group.y * TILE;
    let j0 = group.x * TILE;
    let tile = whole_tile(group.z, i0, j0);
    put(whole_part(group.z), i0, j0, tile);
}
