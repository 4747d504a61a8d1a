// finite: flag[0] becomes 1 if any of the f32 in x is infinite or not a number. It must be 0 before.
// Shapes: x: [n] Bits, each the bits of four f32 or of one. flag: one word.
// Grid: one invocation for SPAN Bits; `width` invocations in a row of the grid.
// Constants: SPAN, the number of Bits of an invocation. Types: Bits, vec4<u32> or u32, and Bad, vec4<bool>
// or bool. Params: FiniteParams of params.rs.

@group(0) @binding(1) var<storage, read> x: array<Bits>;
@group(0) @binding(2) var<storage, read_write> flag: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    let exponent = Bits(0x7f800000u);
    var bad = Bad(false);
    let end = min(params.n, (t + 1u) * SPAN);
    for (var i = t * SPAN; i < end; i++) {
        bad = bad | ((x[i] & exponent) == exponent);
    }
    if any(bad) { atomicStore(&flag[0], 1u); }
}
