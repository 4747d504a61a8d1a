// matmul: the product of snippets/product.wgsl, computed in registers.
// Each invocation computes a tile of 4 * ROWS rows and 4 * COLUMNS columns. It is for small products on any
// machine, and for all products on software adapters without subgroups: it has no barriers, reads no memory
// but the operands, and needs few enough registers for any compiler.
// Grid: x, then y: tiles in row-major order; params.columns tiles in a row of c, and params.width invocations
// in a row of the grid, so that few are idle when c is narrow. z: batch * chunks, or groups of joined shards.
// Constants: ROWS, COLUMNS, and those of product.wgsl.

alias Tile = array<array<array<vec4<f32>, COLUMNS>, 4>, ROWS>;

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    var rows: array<ARows, ROWS>;
    var columns: array<BColumns, COLUMNS>;
    for (var g = 0u; g < ROWS; g++) { rows[g] = a_rows(own, i0 + 4u * g); }
    for (var h = 0u; h < COLUMNS; h++) { columns[h] = b_columns(own, j0 + 4u * h); }
    *sums = Tile();
    for (var p = own.start; p < own.end; p += 4u) {
        var x: array<mat4x4<f32>, ROWS>;
        var y: array<mat4x4<f32>, COLUMNS>;
        for (var g = 0u; g < ROWS; g++) { x[g] = a_block(own, rows[g], p); }
        for (var h = 0u; h < COLUMNS; h++) { y[h] = b_block(own, p, columns[h]); }
        for (var g = 0u; g < ROWS; g++) {
            for (var r = 0u; r < 4u; r++) {
                for (var h = 0u; h < COLUMNS; h++) {
                    (*sums)[g][r][h] = four_steps(x[g][r], y[h], (*sums)[g][r][h]);
                }
            }
        }
    }
}

fn add(to: ptr<function, Tile>, tile: ptr<function, Tile>) {
    for (var g = 0u; g < ROWS; g++) {
        for (var r = 0u; r < 4u; r++) {
            for (var h = 0u; h < COLUMNS; h++) {
                (*to)[g][r][h] = kept((*to)[g][r][h]) + canonical((*tile)[g][r][h]);
            }
        }
    }
}

fn put(own: Part, i0: u32, j0: u32, tile: ptr<function, Tile>) {
    for (var g = 0u; g < ROWS; g++) {
        for (var r = 0u; r < 4u; r++) {
            for (var h = 0u; h < COLUMNS; h++) {
                put_row(own, i0 + 4u * g + r, j0 + 4u * h, (*tile)[g][r][h]);
            }
        }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    let i0 = t / params.columns * 4u * ROWS;
    let j0 = t % params.columns * 4u * COLUMNS;
    if i0 >= params.m { return; }
    var tile: Tile;
    layer_tile(id.z, i0, j0, &tile);
    put(target_part(id.z), i0, j0, &tile);
}
