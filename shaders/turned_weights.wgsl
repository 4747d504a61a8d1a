// turned_weights: the weights of a convolution in the order in which its gradient by the image reads them.
//   y[c, q, o] = x[o, c, places - 1 - q].
// Shapes: x: [outputs, channels, places], y: [channels, places, outputs].
// Grid: one invocation for each (c, q), n in all; `width` invocations in a row of the grid. Params:
// TurnedWeightsParams of params.rs.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * params.width;
    if i >= params.n { return; }
    let q = i % params.places;
    let first = params.first + i + params.places - 1u - 2u * q;
    for (var o = 0u; o < params.outputs; o++) {
        y[i * params.outputs + o] = x[first + o * params.n];
    }
}
