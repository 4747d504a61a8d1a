// Returns the columns c to c + 3 of the result so far, a column of the own places each.
fn OUT_so_far(own: u32, c: u32) -> mat4x4<f32> {
    var rows: mat4x4<f32>;
    for (var r = 0u; r < 4u; r++) { rows[r] = OUT_four(own + r, c); }
    return transpose(rows);
}

fn OUT_keep(own: u32, c: u32, columns: mat4x4<f32>) {
    let rows = transpose(columns);
    for (var r = 0u; r < 4u; r++) { OUT_put(own + r, c, rows[r]); }
}
