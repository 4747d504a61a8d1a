// sort_tiles: the pairs (id, position) of each tile of TILE positions in ascending order.
// Ids that are not below params.rows become params.rows, so that they stand last.
// Shapes: ids: [n] from params.offset on; y: [n] pairs.
// Grid: one invocation a position; params.width invocations in a row of the grid. Each counts the pairs of
// its tile that come before its own. The result is the same whatever the tiles: no two pairs are equal.
// Constant: TILE.

@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<u32>>;

fn key(position: u32) -> u32 {
    return min(bitcast<u32>(ids[params.offset + position]), params.rows);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * params.width;
    if i >= params.n { return; }
    let first = i / TILE * TILE;
    let end = min(first + TILE, params.n);
    let own = key(i);
    var rank = 0u;
    for (var j = first; j < end; j++) {
        let other = key(j);
        rank += select(0u, 1u, other < own || (other == own && j < i));
    }
    y[first + rank] = vec2<u32>(own, i);
}
