// Stores the invocation's results of 64 columns from c on.
fn OUT_keep(own: u32, c: u32, x: Results) {
    let column = c + t % 16u * 4u;
    let row = own + t / 16u * 8u;
    if column >= WIDTH { return; }
    OUT_put(row, column, x.c0);
    OUT_put(row + 1u, column, x.c1);
    OUT_put(row + 2u, column, x.c2);
    OUT_put(row + 3u, column, x.c3);
    OUT_put(row + 4u, column, x.c4);
    OUT_put(row + 5u, column, x.c5);
    OUT_put(row + 6u, column, x.c6);
    OUT_put(row + 7u, column, x.c7);
}
