// tree: y[g, e] = the tree over the leaves j of group g of x[first + j * leaf_stride + e].
//   e < elements; group g holds leaves [g * GROUP, min((g + 1) * GROUP, leaves)).
//   x: from `x_offset`; y[g, e] at y_offset + g * y_group + (e / inner) * y_lead + e % inner; 0 for f32s e >= used.
// Sizes and offsets but `used` count Numbers: f32 (words.wgsl), or four of them (sum_quads.wgsl) where all are multiples.
// Grid: one invocation an element and group, x fastest; `width` invocations in a row of the grid.
// Order: neighbours paired level by level; groups are aligned blocks of a power of two, hence subtrees. Leaves that are not
// there are +0 in sums and the last leaf once more in maxima, which changes nothing.
// Constants: GROUP: 2, 4 or 8, so that all leaves of a group fit registers; MAXIMUM: the larger of two instead of their sum.
// Params: TreeParams of params.rs.

@group(0) @binding(1) var<storage, read> x: array<Number>;
@group(0) @binding(2) var<storage, read_write> y: array<Number>;

fn join(a: Number, b: Number) -> Number {
    if MAXIMUM { return max_of(a, b); }
    return sum_add(a, b);
}

fn leaf(j: u32, e: u32) -> Number {
    let v = x[params.x_offset + min(j, params.leaves - 1u) * params.leaf_stride + e];
    if MAXIMUM { return v; }
    return select(Number(), canonical(v), j < params.leaves);
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
