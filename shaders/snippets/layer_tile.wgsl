// layer_tile: computes a tile of a layer's result at row i and column j. Each kernel's file defines its
// tiles: Tile, multiply, which computes one, and add, which adds one to another when it has made it
// canonical. Tiles are handed on as pointers, because software drivers take twice as long to translate a
// kernel that copies them. The products of `join` shards, a power of two up to eight, are added in loops of
// one or two turns: a sum that begins with +0 and adds the left and then the right half is the tree over
// both. It is made canonical once, after its two turns, since +0 and a canonical number add up to that
// number.
fn layer_tile(layer: u32, i: u32, j: u32, tile: ptr<function, Tile>) {
    if !JOIN {
        multiply(part(layer), i, j, tile);
        return;
    }
    let turns = min(vec3<u32>(2u), max(vec3<u32>(1u), params.join / vec3<u32>(4u, 2u, 1u)));
    var shard = 0u;
    var all: Tile;
    for (var a = 0u; a < turns.x; a++) {
        var half: Tile;
        for (var b = 0u; b < turns.y; b++) {
            var pair: Tile;
            for (var c = 0u; c < turns.z; c++) {
                multiply(shard_part(layer, shard), i, j, tile);
                add(&pair, tile);
                shard++;
            }
            add(&half, &pair);
        }
        add(&all, &half);
    }
    *tile = all;
}
