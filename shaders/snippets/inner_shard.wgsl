// inner_range: returns the inner range of a product over the samples of shard z, which are segments[z] to
// segments[z + 1], with rows_a_sample rows each.
@group(0) @binding(4) var<storage, read> segments: array<u32>;

fn inner_range(z: u32) -> vec2<u32> {
    return vec2<u32>(segments[z], segments[z + 1u]) * params.rows_a_sample;
}
