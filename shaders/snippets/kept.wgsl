// kept: returns x, a sum so far. Where a compiler may add in another order, it is rebuilt from its bits, so
// that what is in x is added first (MASKS in lib.rs). Needs params.zero.
fn kept(x: vec4<f32>) -> vec4<f32> {
    return x;
}
