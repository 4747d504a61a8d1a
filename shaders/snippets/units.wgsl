// units: slabs of SLAB steps of f16 in workgroup memory, and the products of matmul_tiles.wgsl by a matrix
// unit. Both operands hold numbers that f16 represents, so that no conversion rounds.
// An element of the result is serial over blocks of the unit's size from the start of the chunk on, whatever
// the tile is; steps past the end of the inner range are products of zeros.
// The generator replaces the lines in capitals. For each operand it writes what an invocation reads of a slab
// (AFirst, ANext), where that begins (a_first), and how it is read and put into workgroup memory (a_next,
// a_put); and the same for b.

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    let a_from = a_first(own, i0);
    let b_from = b_first(own, j0);
    var tile: Tile;
    // VARIABLES
    var a_read = a_next(own, a_from, own.start);
    var b_read = b_next(own, b_from, own.start);
    for (var p = own.start; p < own.end; p += SLAB) {
        workgroupBarrier();
        a_put(own, p, a_read);
        b_put(own, p, b_read);
        workgroupBarrier();
        a_read = a_next(own, a_from, p + SLAB);
        b_read = b_next(own, b_from, p + SLAB);
        // PRODUCTS
    }
    // RESULT
    *sums = tile;
}
