// sort_merge: merges each WAYS neighbouring tiles of sorted pairs into one.
// Shapes: x, y: [n] pairs; a tile of x has params.tile pairs, the last one maybe fewer.
// Grid: one invocation a pair; params.width invocations in a row of the grid. Each finds its place by binary
// search in the other tiles. Of equal ids those of the earlier tile come first.
// Constant: WAYS.

@group(0) @binding(1) var<storage, read> x: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * params.width;
    if i >= params.n { return; }
    let own = x[i];
    let tile = i / params.tile;
    let group = tile / WAYS * WAYS;
    var place = group * params.tile + i % params.tile;
    for (var other = group; other < group + WAYS; other++) {
        let first = min(other * params.tile, params.n);
        // The ids of an earlier tile count up to this one, those of a later one below it.
        let wanted = own.x + select(0u, 1u, other < tile);
        var low = first;
        var high = select(min(first + params.tile, params.n), first, other == tile);
        while low < high {
            let middle = (low + high) / 2u;
            if x[middle].x < wanted { low = middle + 1u; } else { high = middle; }
        }
        place += low - first;
    }
    y[place] = own;
}
