// a_load: reads a block of a, which is stored as a matrix [m, k] or [k, m].
// Constant: TRANSPOSE_A. The function a_quad comes from a file of its own.

// The first of four rows; a multiple of 4.
alias ARows = u32;

fn a_rows(own: Part, i: u32) -> ARows {
    return i;
}

fn a_load(own: Part, i: ARows, p: u32) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    if TRANSPOSE_A {
        let row = min(i, (params.m - 1u) / 4u * 4u);
        for (var d = 0u; d < 4u; d++) {
            block[d] = a_quad(own.a + inside(own, p + d) * params.a_step + row, params.m - 1u - row);
        }
        return transpose(block);
    }
    for (var r = 0u; r < 4u; r++) {
        block[r] = a_quad(own.a + min(i + r, params.m - 1u) * params.a_step + p, own.end - 1u - p);
    }
    return block;
}
