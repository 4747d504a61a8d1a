// trees: the sums of several trees of tree.wgsl, each over at most GROUP leaves, in one launch.
//   Tree i has the invocations from the `end` of the tree before it to its own. It has six words of `trees`:
//   end, source, x_offset, leaf_stride, leaves, y_offset. Its leaf j of element e is Number
//   x_offset + j * leaf_stride + e of its source, and its sum of element e is y[y_offset + e]. A tree without
//   leaves has sums of 0.
// Units: sizes and offsets count Numbers, which are f32 (words.wgsl), or vectors of four f32 (sum_quads.wgsl)
// where all sizes and offsets are multiples of four.
// Grid: one invocation for each element of each tree; `width` invocations in a row of the grid.
// Order: that of tree.wgsl. Leaves that are not there are +0, which changes no sum.
// Constants: GROUP: 2, 4 or 8. Functions: number(source, i), which loads a Number. Params: TreesParams.

@group(0) @binding(1) var<storage, read> trees: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Number>;

fn leaf(tree: u32, j: u32, e: u32) -> Number {
    let leaves = trees[tree + 4u];
    if j >= leaves { return Number(0.0); }
    return canonical(number(trees[tree + 1u], trees[tree + 2u] + j * trees[tree + 3u] + e));
}

fn pair(tree: u32, j: u32, e: u32) -> Number {
    return sum_add(leaf(tree, j, e), leaf(tree, j + 1u, e));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    if t >= params.n { return; }
    var tree = 0u;
    var first = 0u;
    while t >= trees[tree] {
        first = trees[tree];
        tree += 6u;
    }
    let e = t - first;
    var total = pair(tree, 0u, e);
    if GROUP > 2u { total = sum_add(total, pair(tree, 2u, e)); }
    if GROUP > 4u { total = sum_add(total, sum_add(pair(tree, 4u, e), pair(tree, 6u, e))); }
    y[trees[tree + 5u] + e] = total;
}
