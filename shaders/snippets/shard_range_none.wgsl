// shard_range: for positions that are in no shard.
fn shard_range(shard: u32) -> vec2<u32> {
    return vec2<u32>(0u, params.n);
}
