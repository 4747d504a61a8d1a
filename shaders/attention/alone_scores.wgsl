// Computes the products of rows first to first + 31 of ROWS with the four own places from `own` on of OWN.
fn scores_ROWS_OWN(first: u32, own: u32, sums: ptr<function, Tile>) {
    *sums = Tile();
    for (var c = 0u; c < columns(WIDTH); c += 4u) {
        var x: array<mat4x4<f32>, 8>;
        for (var g = 0u; g < 8u; g++) {
            for (var r = 0u; r < 4u; r++) { x[g][r] = ROWS_four(first + 4u * g + r, c); }
        }
        var y: mat4x4<f32>;
        for (var r = 0u; r < 4u; r++) { y[r] = OWN_four(own + r, c); }
        y = transpose(y);
        for (var g = 0u; g < 8u; g++) {
            for (var r = 0u; r < 4u; r++) { (*sums)[g][r] = four_steps(x[g][r], y, (*sums)[g][r]); }
        }
    }
}
