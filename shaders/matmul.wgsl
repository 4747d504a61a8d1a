// matmul: the product of snippets/product.wgsl, computed in registers.
// Each invocation computes a tile of four rows and four columns. It is for small products on any machine: it
// has no barriers, reads no memory but the operands, and needs few enough registers for any compiler.
// Grid: x, then y: tiles in row-major order; params.columns tiles in a row of c, and params.width invocations
// in a row of the grid, so that few are idle when c is narrow. z: batch * chunks, or groups of joined shards.
// Constants: those of product.wgsl.

alias Tile = array<vec4<f32>, 4>;

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    let rows = a_rows(own, i0);
    let columns = b_columns(own, j0);
    *sums = Tile();
    for (var p = own.start; p < own.end; p += 4u) {
        let x = a_block(own, rows, p);
        let y = b_block(own, p, columns);
        for (var r = 0u; r < 4u; r++) { (*sums)[r] = four_steps(x[r], y, (*sums)[r]); }
    }
}

fn add(to: ptr<function, Tile>, tile: ptr<function, Tile>) {
    for (var r = 0u; r < 4u; r++) { (*to)[r] = kept((*to)[r]) + canonical((*tile)[r]); }
}

fn put(own: Part, i0: u32, j0: u32, tile: ptr<function, Tile>) {
    for (var r = 0u; r < 4u; r++) { put_row(own, i0 + r, j0, (*tile)[r]); }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    let i0 = t / params.columns * 4u;
    let j0 = t % params.columns * 4u;
    if i0 >= params.m { return; }
    var tile: Tile;
    layer_tile(id.z, i0, j0, &tile);
    put(target_part(id.z), i0, j0, &tile);
}
