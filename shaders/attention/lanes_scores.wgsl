// Computes the products of rows first to first + 31 of ROWS with the four own places from `own` on of OWN.
fn scores_ROWS_OWN(first: u32, own: u32, sums: ptr<function, Tile>) {
    *sums = Tile();
    for (var c = 0u; c < columns(WIDTH); c += 4u) {
        var x: array<mat4x4<f32>, HELD>;
        for (var h = 0u; h < HELD; h++) {
            for (var r = 0u; r < 4u; r++) { x[h][r] = ROWS_four(first + 4u * (h * LANES + lane % 8u) + r, c); }
        }
        var y: mat4x4<f32>;
        for (var r = 0u; r < 4u; r++) { y[r] = OWN_four(own + r, c); }
        y = transpose(y);
        for (var h = 0u; h < HELD; h++) {
            for (var s = 0u; s < READERS; s++) {
                for (var r = 0u; r < 4u; r++) {
                    let g = h * READERS + s;
                    (*sums)[g][r] = four_steps(subgroupShuffle(x[h][r], s), y, (*sums)[g][r]);
                }
            }
        }
    }
}
