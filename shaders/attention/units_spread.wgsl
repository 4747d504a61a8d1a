// Adds the products of the tile with the 32 rows from `first` on of ROWS, in the 64 columns from c on. Every
// invocation must call it. It reads the tile behind a barrier of its own.
fn spread_ROWS(first: u32, c: u32, sums: Results) -> Results {
    let column = c + t % 16u * 4u;
    for (var i = t / 16u; i < BLOCK; i += 8u) {
        var row: vec4<f32>;
        if column < WIDTH { row = ROWS_four(first + i, column); }
        halves[i * WIDE + t % 16u] = vec4<f16>(row);
    }
    var all = sums;
    workgroupBarrier();
    //SPREAD
    workgroupBarrier();
    return all;
}
