// matmul_tiles: the product of snippets/product.wgsl, computed through workgroup memory on GPUs.
// A workgroup computes a tile of 64 rows and 64 columns, 8 rows and 4 columns an invocation, from slabs of 16
// steps in workgroup memory. Half of the invocations read the slab of a, the other half that of b, each a
// block of four by four. The sums are named variables and not an array, since some compilers put arrays into
// memory; larger tiles spill registers on some GPUs.
// Grid: x: tiles of 64 columns; y: tiles of 64 rows; z: batch * chunks, or groups of joined shards. Every
// invocation reaches every barrier.
// Constants: those of product.wgsl.

const SLAB: u32 = 16u;

// a_slab[p * 16 + r]: rows 4 r to 4 r + 3 at step p; b_slab[p * 16 + s]: columns 4 s to 4 s + 3.
var<workgroup> a_slab: array<vec4<f32>, 256>;
var<workgroup> b_slab: array<vec4<f32>, 256>;

// The part of the tile that an invocation computes: eight rows of four columns.
struct Tile {
    c0: vec4<f32>, c1: vec4<f32>, c2: vec4<f32>, c3: vec4<f32>,
    c4: vec4<f32>, c5: vec4<f32>, c6: vec4<f32>, c7: vec4<f32>,
}

// The number of this invocation in its workgroup.
var<private> t: u32;

fn multiply(own: Part, i0: u32, j0: u32) -> Tile {
    // The block that this invocation reads: four rows or columns, four steps.
    let block = t % 64u / 4u;
    let steps = t % 4u * 4u;
    // The part of the tile that it computes.
    let row = t / 16u * 2u;
    let column = t % 16u;
    var c0 = vec4<f32>();
    var c1 = vec4<f32>();
    var c2 = vec4<f32>();
    var c3 = vec4<f32>();
    var c4 = vec4<f32>();
    var c5 = vec4<f32>();
    var c6 = vec4<f32>();
    var c7 = vec4<f32>();
    var rows: ARows;
    var columns: BColumns;
    if t < 64u { rows = a_rows(own, i0 + 4u * block); } else { columns = b_columns(own, j0 + 4u * block); }
    for (var p = own.start; p < own.end; p += SLAB) {
        let is_inside = p + steps < own.end;
        var read: mat4x4<f32>;
        if t < 64u {
            if is_inside { read = transpose(a_block(own, rows, p + steps)); }
            for (var d = 0u; d < 4u; d++) { a_slab[(steps + d) * 16u + block] = read[d]; }
        } else {
            if is_inside { read = b_block(own, p + steps, columns); }
            for (var d = 0u; d < 4u; d++) { b_slab[(steps + d) * 16u + block] = read[d]; }
        }
        workgroupBarrier();
        for (var d = 0u; d < SLAB; d++) {
            let x = a_slab[d * 16u + row];
            let z = a_slab[d * 16u + row + 1u];
            let y = b_slab[d * 16u + column];
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
    return Tile(c0, c1, c2, c3, c4, c5, c6, c7);
}

fn add(a: Tile, b: Tile) -> Tile {
    return Tile(
        a.c0 + b.c0, a.c1 + b.c1, a.c2 + b.c2, a.c3 + b.c3,
        a.c4 + b.c4, a.c5 + b.c5, a.c6 + b.c6, a.c7 + b.c7,
    );
}

fn clean(a: Tile) -> Tile {
    return Tile(
        canonical(a.c0), canonical(a.c1), canonical(a.c2), canonical(a.c3),
        canonical(a.c4), canonical(a.c5), canonical(a.c6), canonical(a.c7),
    );
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    let tile = layer_tile(group.z, group.y * 64u, group.x * 64u);
    let own = target_part(group.z);
    let i = group.y * 64u + t / 16u * 8u;
    let j = group.x * 64u + t % 16u * 4u;
    put_row(own, i, j, tile.c0);
    put_row(own, i + 1u, j, tile.c1);
    put_row(own, i + 2u, j, tile.c2);
    put_row(own, i + 3u, j, tile.c3);
    put_row(own, i + 4u, j, tile.c4);
    put_row(own, i + 5u, j, tile.c5);
    put_row(own, i + 6u, j, tile.c6);
    put_row(own, i + 7u, j, tile.c7);
}
