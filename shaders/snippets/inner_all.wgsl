// inner_range: returns the inner range of a product over all of k.
fn inner_range(z: u32) -> vec2<u32> {
    return vec2<u32>(0u, params.k);
}
