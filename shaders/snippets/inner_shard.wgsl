// inner_range: a product over the rows of shard z: samples segments[z] to segments[z + 1], some rows a sample.
@group(0) @binding(4) var<storage, read> segments: array<u32>;

fn inner_range(z: u32) -> vec2<u32> {
    return vec2<u32>(segments[z], segments[z + 1u]) * params.rows_a_sample;
}
