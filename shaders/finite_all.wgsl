// finite_all: flag[0] becomes 1 if any of the f32 in several memories is infinite or not a number. It must be
// 0 before.
// Shapes: x0, x1, ...: the bits of f32, four at a time. flag: one word.
// Grid: x and y: one invocation for SPAN fours of the longest memory, `width` invocations in a row of the
// grid; z: the memories, each of which has a case in the place of the mark.
// Constants: SPAN. Params: FiniteParams of params.rs, whose `n` is not used.

@group(0) @binding(1) var<storage, read_write> flag: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    let exponent = vec4<u32>(0x7f800000u);
    var bad = vec4<bool>(false);
    switch id.z {
        //EACH
        default: {}
    }
    if any(bad) { atomicStore(&flag[0], 1u); }
}
