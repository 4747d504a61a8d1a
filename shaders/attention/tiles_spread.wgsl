// Adds the products of the tile with the 32 rows from `first` on of ROWS, in the 64 columns from c on. Every
// invocation must call it. It reads the tile behind a barrier of its own.
fn spread_ROWS(first: u32, c: u32, sums: Results) -> Results {
    var c0 = sums.c0;
    var c1 = sums.c1;
    var c2 = sums.c2;
    var c3 = sums.c3;
    var c4 = sums.c4;
    var c5 = sums.c5;
    var c6 = sums.c6;
    var c7 = sums.c7;
    let column = c + t % 16u * 4u;
    let own = t / 16u * 2u;
    for (var half = 0u; half < BLOCK; half += 16u) {
        for (var i = t / 16u; i < 16u; i += 8u) {
            var row: vec4<f32>;
            if column < WIDTH { row = ROWS_four(first + half + i, column); }
            own_slab[i * 16u + t % 16u] = row;
        }
        workgroupBarrier();
        for (var r = 0u; r < 16u; r++) {
            let x = tile[(half + r) * 16u + own];
            let z = tile[(half + r) * 16u + own + 1u];
            let y = own_slab[r * 16u + t % 16u];
            c0 = fma(x.xxxx, y, c0);
            c1 = fma(x.yyyy, y, c1);
            c2 = fma(x.zzzz, y, c2);
            c3 = fma(x.wwww, y, c3);
            c4 = fma(z.xxxx, y, c4);
            c5 = fma(z.yyyy, y, c5);
            c6 = fma(z.zzzz, y, c6);
            c7 = fma(z.wwww, y, c7);
        }
        workgroupBarrier();
    }
    return Results(c0, c1, c2, c3, c4, c5, c6, c7);
}
