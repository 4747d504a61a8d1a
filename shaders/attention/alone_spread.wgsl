// Adds the products of a tile with rows first to first + 31 of ROWS, in columns c to c + 3: sums[i] is column
// c + i of the own places.
fn spread_ROWS(tile: ptr<function, Tile>, first: u32, c: u32, sums: mat4x4<f32>) -> mat4x4<f32> {
    var x: array<mat4x4<f32>, 8>;
    for (var g = 0u; g < 8u; g++) {
        for (var r = 0u; r < 4u; r++) { x[g][r] = ROWS_four(first + 4u * g + r, c); }
    }
    var all = sums;
    for (var g = 0u; g < 8u; g++) {
        for (var r = 0u; r < 4u; r++) {
            let row = x[g][r];
            let own = (*tile)[g][r];
            all[0] = fma(own, row.xxxx, all[0]);
            all[1] = fma(own, row.yyyy, all[1]);
            all[2] = fma(own, row.zzzz, all[2]);
            all[3] = fma(own, row.wwww, all[3]);
        }
    }
    return all;
}
