// a: its elements in memory, eight of f16 at a time.
@group(0) @binding(1) var<storage, read> a: array<vec4<u32>>;
