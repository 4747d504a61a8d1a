// Adds the products of a tile with rows first to first + 31 of ROWS, in columns c to c + 3: sums[i] is column
// c + i of the own places.
fn spread_ROWS(tile: ptr<function, Tile>, first: u32, c: u32, sums: mat4x4<f32>) -> mat4x4<f32> {
    var x: array<mat4x4<f32>, HELD>;
    for (var h = 0u; h < HELD; h++) {
        for (var r = 0u; r < 4u; r++) { x[h][r] = ROWS_four(first + 4u * (h * LANES + lane % 8u) + r, c); }
    }
    var all = sums;
    for (var h = 0u; h < HELD; h++) {
        for (var s = 0u; s < READERS; s++) {
            for (var r = 0u; r < 4u; r++) {
                let row = subgroupShuffle(x[h][r], s);
                let own = (*tile)[h * READERS + s][r];
                all[0] = fma(own, row.xxxx, all[0]);
                all[1] = fma(own, row.yyyy, all[1]);
                all[2] = fma(own, row.zzzz, all[2]);
                all[3] = fma(own, row.wwww, all[3]);
            }
        }
    }
    return all;
}
