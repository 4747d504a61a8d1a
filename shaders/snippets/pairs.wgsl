// Two f32 in a u64, the first in its low half: what a software adapter loads lane by lane, it loads two at a time.
fn low(x: u64) -> f32 {
    return bitcast<f32>(u32(x));
}

fn high(x: u64) -> f32 {
    return bitcast<f32>(u32(x >> 32u));
}

fn pair(first: f32, second: f32) -> u64 {
    return u64(bitcast<u32>(first)) | (u64(bitcast<u32>(second)) << 32u);
}
