// replace: to[i + params.to] = from[i + params.from] for n words, unless commit[0] is not 0.
// Grid: one invocation a word; `width` invocations in a row of the grid. Params: ReplaceParams of params.rs.

@group(0) @binding(1) var<storage, read> commit: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<u32>;
@group(0) @binding(3) var<storage, read_write> target_words: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let skipped = commit[0];
    let i = id.x + id.y * params.width;
    if (i >= params.n) | (skipped != 0u) { return; }
    target_words[i + params.target_first] = source[i + params.source_first];
}
