// packed_panels: the right operand of a product in panels of 32 columns, in the order in which
// matmul_panels.wgsl multiplies with them. Columns behind the last one are copies of it.
//   panel[q, p, c] = b[first + p * step + min(32 * q + c, n - 1) * column].
// Shapes: b: [k, n] or [n, k], panel: [n / 32 rounded up, k, 32].
// Grid: x: a panel each; y: STEPS steps each. Params: PackedPanelsParams of params.rs.
// Constants: STEPS. The function unisono_panel_copy is the one of products.

@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> panel: array<vec4<f32>>;

fn right(i: u32) -> f32 { return b[i]; }

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    let j = 32u * group.x;
    let p = STEPS * group.y;
    let first = params.first + p * params.step + j * params.column;
    let steps = min(STEPS, params.k - p);
    unisono_panel_copy(first, params.step, params.column, steps, params.n - 1u - j, group.x * params.k + p);
}
