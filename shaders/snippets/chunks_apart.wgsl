// whole_tile, whole_part: the tile of a layer, and where it goes, where a layer is one chunk of a product.
fn whole_tile(layer: u32, i: u32, j: u32) -> Tile {
    return layer_tile(layer, i, j);
}

fn whole_part(layer: u32) -> Part {
    return target_part(layer);
}
