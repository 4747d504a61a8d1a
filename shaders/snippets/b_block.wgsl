// b_block: a product's right operand in blocks of four by four.
// block[d][s] = b[p + d, j + s] for the columns j to j + 3, and 0 from `end` on. Columns from n on hold any
// values. p < end.
fn b_block(own: Part, p: u32, columns: BColumns) -> mat4x4<f32> {
    var block = b_load(own, p, columns);
    if RAGGED {
        for (var d = 0u; d < 4u; d++) { block[d] = select(vec4<f32>(), block[d], vec4<bool>(p + d < own.end)); }
    }
    return block;
}

