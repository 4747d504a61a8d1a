// finish: the epilogue of a product that has none: the product is stored as it is.
fn finish(at: u32, last: u32, row: u32, column: u32, is_there: bool, x: vec4<f32>) -> vec4<f32> {
    return x;
}
