// matmul_lanes: the product of snippets/product.wgsl, computed by subgroups of LANES lanes on software
// adapters. On these a subgroup is a vector, and reading memory is slow: some 70 cycles a load, lane by lane,
// against one for a multiply-add. A workgroup is one subgroup and computes 4 * LANES rows and 4 * LANES
// columns. Each lane computes four columns, reads four of the rows, and gets the rows of the other lanes by
// shuffles, which cost nothing: 8 loads for 16 * LANES * 4 vector steps.
// Loops over a tile have constant bounds, so that they unroll and the sums stay in registers, except in
// `put`.
// Grid: x: 4 * LANES columns each; y: 4 * LANES rows each; z: batch * chunks, or groups of joined shards.
// Constants: LANES, the size of every subgroup, and those of product.wgsl.

// tile[s][r]: row r of the four rows that lane s reads, in the four columns of this lane.
alias Tile = array<array<vec4<f32>, 4>, LANES>;

fn multiply(own: Part, i: u32, j: u32, sums: ptr<function, Tile>) {
    let rows = a_rows(own, i);
    let columns = b_columns(own, j);
    *sums = Tile();
    for (var p = own.start; p < own.end; p += 4u) {
        let x = a_block(own, rows, p);
        let y = b_block(own, p, columns);
        for (var s = 0u; s < LANES; s++) {
            for (var r = 0u; r < 4u; r++) {
                (*sums)[s][r] = four_steps(subgroupShuffle(x[r], s), y, (*sums)[s][r]);
            }
        }
    }
}

fn add(to: ptr<function, Tile>, tile: ptr<function, Tile>) {
    for (var s = 0u; s < LANES; s++) {
        for (var r = 0u; r < 4u; r++) { (*to)[s][r] = kept((*to)[s][r]) + canonical((*tile)[s][r]); }
    }
}

// Writes four rows a turn, after which the rest of the tile moves up. Stores of all rows one after another
// would take longer to compile than everything else, and an index that changes from turn to turn would move
// the tile out of registers.
fn put(own: Part, i0: u32, j: u32, rest: ptr<function, Tile>) {
    let turns = min(LANES, (params.m - i0 + 3u) / 4u);
    for (var turn = 0u; turn < turns; turn++) {
        for (var r = 0u; r < 4u; r++) { put_row(own, i0 + 4u * turn + r, j, (*rest)[0][r]); }
        for (var s = 1u; s < LANES; s++) { (*rest)[s - 1u] = (*rest)[s]; }
    }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    let i0 = group.y * 4u * LANES;
    let j = (group.x * LANES + lane) * 4u;
    var tile: Tile;
    layer_tile(group.z, i0 + 4u * lane, j, &tile);
    put(target_part(group.z), i0, j, &tile);
}
