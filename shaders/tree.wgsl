// tree: y[g, e] = the sum, or the maximum, of the leaves of group g of element e, in the order of the binary
// tree.
//   Leaf j of element e is x[x_offset + j * leaf_stride + e], for e < elements and j < leaves.
//   Group g holds the leaves [g * GROUP, min((g + 1) * GROUP, leaves)).
//   y[g, e] is at y_offset + g * y_group + (e / inner) * y_lead + e % inner; it is 0 for f32s e >= used.
// Units: sizes and offsets count Numbers, which are f32 (words.wgsl), or vectors of four f32 (sum_quads.wgsl)
// where all sizes and offsets are multiples of four. Only `used` counts f32.
// Grid: one invocation for each element and group, x fastest; `width` invocations in a row of the grid.
// Order: neighbours are paired level by level. Groups are aligned blocks of a power of two, hence subtrees. A
// leaf that is not there is +0 in a sum and the last leaf once more in a maximum; neither changes the result.
// Constants: GROUP: 2, 4 or 8, so that all leaves of a group fit registers; MAXIMUM: whether to take the
// larger of two instead of their sum. Params: TreeParams of params.rs.

@group(0) @binding(1) var<storage, read> x: array<Number>;
@group(0) @binding(2) var<storage, read_write> y: array<Number>;

fn join(a: Number, b: Number) -> Number {
    if MAXIMUM { return max_of(a, b); }
    return sum_add(a, b);
}

fn leaf(j: u32, e: u32) -> Number {
    let v = x[params.x_offset + min(j, params.leaves - 1u) * params.leaf_stride + e];
    if MAXIMUM { return v; }
    return select(Number(0.0), canonical(v), j < params.leaves);
}

fn pair(j: u32, e: u32) -> Number {
    return join(leaf(j, e), leaf(j + 1u, e));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    if t >= params.elements * params.groups { return; }
    let e = t % params.elements;
    let g = t / params.elements;
    let first = g * GROUP;
    var total = pair(first, e);
    if GROUP > 2u { total = join(total, pair(first + 2u, e)); }
    if GROUP > 4u { total = join(total, join(pair(first + 4u, e), pair(first + 6u, e))); }
    let at = params.y_offset + g * params.y_group + (e / params.inner) * params.y_lead + e % params.inner;
    y[at] = until(total, e, params.used);
}
