// whole_tile, whole_part: the tile of a layer, and where it goes, where a layer is one chunk of a product.
fn whole_tile(layer: u32, i: u32, j: u32) -> Tile {
    var tile: Tile;
    layer_tile(layer, i, j, &tile);
    return tile;
}

fn whole_part(layer: u32) -> Part {
    return target_part(layer);
}
