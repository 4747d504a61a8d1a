// tree: y[g, e] = the tree over the leaves j of group g of x[first + j * leaf_stride + e].
//   e < elements; group g holds leaves [g * GROUP, min((g + 1) * GROUP, leaves)).
//   x: from `x_offset`; y[g, e] at y_offset + g * y_group + (e / inner) * y_lead + e % inner.
// Grid: one invocation an element and group, x fastest; `width` invocations in a row of the grid.
// Order: neighbours paired level by level; groups are aligned blocks of a power of two, hence subtrees.
// Constants: GROUP, a power of two; MAXIMUM: the larger of two instead of their sum.

struct Params {
    elements: u32, leaves: u32, leaf_stride: u32, x_offset: u32,
    y_offset: u32, y_group: u32, y_lead: u32, inner: u32,
    width: u32, groups: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn join(a: f32, b: f32) -> f32 {
    if MAXIMUM { return max_of(a, b); }
    return sum_add(a, b);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    if t >= params.elements * params.groups { return; }
    let e = t % params.elements;
    let g = t / params.elements;
    let first = g * GROUP;
    let count = min(GROUP, params.leaves - first);
    // pending[d]: a finished subtree that waits for its right neighbour; as many as there are ones in the leaf's number.
    var pending: array<f32, 20>;
    var depth = 0u;
    for (var j = 0u; j < count; j++) {
        var v = x[params.x_offset + (first + j) * params.leaf_stride + e];
        if !MAXIMUM { v = canonical(v); }
        for (var carry = j; (carry & 1u) == 1u; carry >>= 1u) {
            depth--;
            v = join(pending[depth], v);
        }
        pending[depth] = v;
        depth++;
    }
    var total = pending[depth - 1u];
    for (; depth > 1u; depth--) {
        total = join(pending[depth - 2u], total);
    }
    y[params.y_offset + g * params.y_group + (e / params.inner) * params.y_lead + e % params.inner] = total;
}
