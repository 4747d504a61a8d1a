// slabs: slabs of 16 steps of f32 in workgroup memory, and the multiply-adds of matmul_tiles.wgsl.
// A step takes an invocation 2 * SIDE / 4 reads of workgroup memory for SIDE * SIDE multiply-adds. The fours
// of rows and columns that it takes lie LANES fours apart, so that its neighbours read side by side, and a
// slab's fours change places from step to step (`turned`), so that writing a slab has no bank conflicts
// either.

const SLAB: u32 = 16u;
// The fours of a slab's step.
const FOURS: u32 = TILE / 4u;

// slab[p * FOURS + turned(r, p)]: rows 4 r to 4 r + 3 of a at step p; behind these are the columns of b.
var<workgroup> slab: array<vec4<f32>, 2u * FOURS * SLAB>;
const BEHIND: u32 = FOURS * SLAB;

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

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    compute(group);
}
