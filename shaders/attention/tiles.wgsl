// attention, tiles: what the kernels of attention share on GPUs.
// A workgroup of 128 invocations has 64 own places (queries, or keys where their gradients are computed), and
// goes over the places of the other side, the rows, in blocks of 32. Scores of a block are a tile in
// workgroup memory, results of the own places are in registers: eight places and four columns an invocation,
// for each 64 columns. All of it takes less than 16 KiB of workgroup memory, which every adapter has.

const BLOCK: u32 = 32u;
const OWN: u32 = 64u;

//IF SLABS
// own_slab[p * 16 + r]: own places 4 r to 4 r + 3 at step p; or columns 4 r to 4 r + 3 of row p. What is
// stored as steps is stored at r xor 2 (p / 4), since four invocations that store side by side would else
// meet in a bank.
var<workgroup> own_slab: array<vec4<f32>, 256>;
//END SLABS
// row_slab[p * 8 + r]: rows 4 r to 4 r + 3 of the block at step p.
var<workgroup> row_slab: array<vec4<f32>, 128>;
// tile[r * 16 + s]: row r of the block in own places 4 s to 4 s + 3.
var<workgroup> tile: array<vec4<f32>, 512>;

// The number of this invocation in its workgroup.
var<private> t: u32;

// The results of eight own places, those of two fours, in four columns.
struct Results {
    c0: vec4<f32>, c1: vec4<f32>, c2: vec4<f32>, c3: vec4<f32>,
    c4: vec4<f32>, c5: vec4<f32>, c6: vec4<f32>, c7: vec4<f32>,
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w));
}

//IF SLABS
// Stores a block of four own places or rows and four steps as steps.
fn put_own(block: mat4x4<f32>, four: u32, steps: u32) {
    let turned = transpose(block);
    for (var d = 0u; d < 4u; d++) { own_slab[(steps + d) * 16u + (four ^ (steps / 2u))] = turned[d]; }
}

fn put_rows(block: mat4x4<f32>, four: u32, steps: u32) {
    let turned = transpose(block);
    for (var d = 0u; d < 4u; d++) { row_slab[(steps + d) * 8u + (four ^ (steps / 2u))] = turned[d]; }
}

// Puts the four rows and four own places that this invocation has into the tile.
fn put_tile(four: mat4x4<f32>) {
    for (var r = 0u; r < 4u; r++) { tile[(t / 16u * 4u + r) * 16u + t % 16u] = four[r]; }
}
//END SLABS

fn canonical_results(x: Results) -> Results {
    return Results(
        canonical(x.c0), canonical(x.c1), canonical(x.c2), canonical(x.c3),
        canonical(x.c4), canonical(x.c5), canonical(x.c6), canonical(x.c7),
    );
}

// Returns canonical results times a factor of each own place.
fn scaled(x: Results, a: vec4<f32>, b: vec4<f32>) -> Results {
    return Results(
        canonical(x.c0 * a.x), canonical(x.c1 * a.y), canonical(x.c2 * a.z), canonical(x.c3 * a.w),
        canonical(x.c4 * b.x), canonical(x.c5 * b.y), canonical(x.c6 * b.z), canonical(x.c7 * b.w),
    );
}
