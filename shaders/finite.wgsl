// finite: flag[0] becomes 1 if any of the f32 x[0..4 n] is infinite or not a number. It must be 0 before.
// Shapes: x: [n] fours of f32, as bits. flag: one word.
// Grid: one invocation for SPAN fours; `width` invocations in a row of the grid.
// Constants: SPAN, the number of fours of an invocation. Params: FiniteParams of params.rs.

@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> flag: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    let exponent = vec4<u32>(0x7f800000u);
    var bad = vec4<bool>(false);
    let end = min(params.n, (t + 1u) * SPAN);
    for (var i = t * SPAN; i < end; i++) {
        bad = bad | ((x[i] & exponent) == exponent);
    }
    if any(bad) { atomicOr(&flag[0], 1u); }
}
