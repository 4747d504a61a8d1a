// shard_range: returns the positions of a shard's samples, which have params.positions each.
@group(0) @binding(4) var<storage, read> samples: array<u32>;

fn shard_range(shard: u32) -> vec2<u32> {
    return vec2<u32>(samples[shard], samples[shard + 1u]) * params.positions;
}
