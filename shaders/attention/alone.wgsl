// attention, alone: what the kernels of attention share where an invocation has no others beside it: on the
// CPU, and on GPUs whose workgroups have no room for tiles.
// An invocation has four own places (queries, or keys where their gradients are computed), and goes over the
// places of the other side, the rows, in blocks of 32. What belongs to own places and does not fit into
// registers, the result so far, is kept where it is stored in the end.
// Loops over a tile have constant bounds, so that they unroll and the tile stays in registers.

const BLOCK: u32 = 32u;

// tile[g][r]: row 4 g + r of a block, in the own places.
alias Four = array<vec4<f32>, 4>;
alias Tile = array<Four, 8>;

// The number of columns, which a compiler does not know: it would write what a tile does with four columns
// several times where heads are narrow, which takes long to compile and is no faster.
fn columns(width: u32) -> u32 { return width + params.zero; }

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w));
}

fn four_steps(x: vec4<f32>, y: mat4x4<f32>, sums: vec4<f32>) -> vec4<f32> {
    return fma(x.wwww, y[3], fma(x.zzzz, y[2], fma(x.yyyy, y[1], fma(x.xxxx, y[0], sums))));
}

// Moves the tile up by four rows, and puts others at its end. After eight turns it is where it was. An index
// that changes from turn to turn would move the tile out of registers, and eight copies of what is done with
// each four would take long to compile. So would copies of the tile: functions have pointers to it.
fn turn(tile: ptr<function, Tile>, last: Four) {
    for (var g = 1u; g < 8u; g++) { (*tile)[g - 1u] = (*tile)[g]; }
    (*tile)[7] = last;
}
