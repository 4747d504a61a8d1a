// b: its elements in memory, eight of f16 at a time.
@group(0) @binding(2) var<storage, read> b: array<vec4<u32>>;
