// units: slabs of 16 steps of f16 in workgroup memory, and the products of matmul_tiles.wgsl by a matrix
// unit. Both operands hold numbers that f16 represents, so that the conversions round nothing.
// The generator replaces three lines: VARIABLES, PRODUCTS and RESULT. An element of the result is serial over
// blocks of the unit's size from the start of the chunk on, whatever the tile is; steps past the end of the
// inner range are products of zeros.

const SLAB: u32 = 16u;
// The fours of halves from one row to the next. Two more than a row has, so that rows that are read side by
// side are in other banks.
const STRIDE: u32 = 6u;

// halves[r * STRIDE + q]: steps 4 q to 4 q + 3 of row r of a; behind these are the columns of b.
var<workgroup> halves: array<vec4<f16>, 2u * STRIDE * TILE>;
const BEHIND: u32 = STRIDE * TILE;

// Four steps of four rows of a, or of four columns of b.
struct Block { x: vec4<f16>, y: vec4<f16>, z: vec4<f16>, w: vec4<f16> }

// Returns the block that this invocation puts into the slab: four steps from p on. It is 0 from the end of
// the inner range on.
fn read_block(own: Part, rows: ARows, columns: BColumns, p: u32, is_a: bool) -> Block {
    var block: Block;
    if p < own.end {
        var read: mat4x4<f32>;
        if is_a { read = a_block(own, rows, p); } else { read = transpose(b_block(own, p, columns)); }
        block = Block(vec4<f16>(read[0]), vec4<f16>(read[1]), vec4<f16>(read[2]), vec4<f16>(read[3]));
    }
    return block;
}

fn put_block(to: u32, block: Block) {
    halves[to] = block.x;
    halves[to + STRIDE] = block.y;
    halves[to + 2u * STRIDE] = block.z;
    halves[to + 3u * STRIDE] = block.w;
}

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    // The block that this invocation reads: four rows or columns, four steps.
    let block = t % TILE / 4u;
    let steps = t % 4u * 4u;
    let is_a = BOTH || t < TILE;
    let to = select(BEHIND, 0u, is_a) + 4u * block * STRIDE + steps / 4u;
    var rows: ARows;
    var columns: BColumns;
    if is_a { rows = a_rows(own, i0 + 4u * block); }
    if BOTH || !is_a { columns = b_columns(own, j0 + 4u * block); }
    var tile: Tile;
    // VARIABLES
    var read = read_block(own, rows, columns, own.start + steps, is_a);
    for (var p = own.start; p < own.end; p += SLAB) {
        workgroupBarrier();
        put_block(to, read);
        if BOTH { put_block(to + BEHIND, read_block(own, rows, columns, p + steps, false)); }
        workgroupBarrier();
        read = read_block(own, rows, columns, p + SLAB + steps, is_a);
        // PRODUCTS
    }
    // RESULT
    *sums = tile;
}
