// b_load: reads a block of b, which is stored as a matrix [k, n] or [n, k].
// Constant: TRANSPOSE_B. The function b_quad comes from a file of its own.

// The first of four columns; a multiple of 4.
alias BColumns = u32;

fn b_columns(own: Part, j: u32) -> BColumns {
    return j;
}

fn b_load(own: Part, p: u32, j: BColumns) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    if TRANSPOSE_B {
        for (var s = 0u; s < 4u; s++) {
            block[s] = b_quad(own.b + min(j + s, params.n - 1u) * params.b_step + p, own.end - 1u - p);
        }
        return transpose(block);
    }
    let column = min(j, (params.n - 1u) / 4u * 4u);
    for (var d = 0u; d < 4u; d++) {
        block[d] = b_quad(own.b + inside(own, p + d) * params.b_step + column, params.n - 1u - column);
    }
    return block;
}
