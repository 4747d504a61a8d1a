// low, high, pair: two f32 in a u64, the first one in the low half. A software adapter loads memory lane by
// lane, and so it loads two f32 at a time.
fn low(x: u64) -> f32 {
    return bitcast<f32>(u32(x));
}

fn high(x: u64) -> f32 {
    return bitcast<f32>(u32(x >> 32u));
}

fn pair(first: f32, second: f32) -> u64 {
    return u64(bitcast<u32>(first)) | (u64(bitcast<u32>(second)) << 32u);
}
