// a_block: a product's left operand in blocks of four by four.
// block[r][d] = a[i + r, p + d] for the rows i to i + 3 of `rows`, and 0 from `end` on. Rows from m on hold
// any values. p < end.
fn a_block(own: Part, rows: ARows, p: u32) -> mat4x4<f32> {
    var block = a_load(own, rows, p);
    if RAGGED {
        let counts = vec4<u32>(p, p + 1u, p + 2u, p + 3u) < vec4<u32>(own.end);
        for (var r = 0u; r < 4u; r++) { block[r] = select(vec4<f32>(), block[r], counts); }
    }
    return block;
}

