// row_sums: c[id] = the sum of the rows of b at the positions that have this id: an embedding's gradient.
// Rows of c whose id no position has are left as they are: zeros.
// Shapes: order: [n] pairs (id, position), ascending; b: [n, columns]; c: [rows, columns], for each shard or
// for all shards of the launch together.
// Order: a shard's positions are cut into chunks of CHUNK. Inside a chunk the sum is serial from +0, in the
// order of the positions. Across chunks, and then across shards, it is the binary tree: leaf number (shard,
// chunk) is written in bits, and when the next leaf differs from it first in bit l, the subtrees of the
// levels below l are complete. Leaves that no position has are +0 and change nothing.
// Grid: one invocation for each pair and each four columns, the columns fastest; params.width invocations in
// a row of the grid. Only the first pair of a sum goes on. The time depends on n, not on rows.
// Constants: CHUNK; JOIN: whether c has the sum over the shards; SHARDS: whether positions are those of
// samples in shards. Functions from other files: kept, b_quad, put_quad, shard_range; or generated:
// close(sum, level) and total(sum), which hold the sums of the complete left subtrees of each level.

@group(0) @binding(1) var<storage, read> order: array<vec2<u32>>;

// The shard of a position, and the positions of the shard.
struct Shard { index: u32, start: u32, end: u32 }

fn shard_of(position: u32) -> Shard {
    if !SHARDS { return Shard(params.first_shard, 0u, params.n); }
    var low = params.first_shard;
    var high = params.end_shard;
    while low + 1u < high {
        let middle = (low + high) / 2u;
        if shard_range(middle).x <= position { low = middle; } else { high = middle; }
    }
    let range = shard_range(low);
    return Shard(low, range.x, range.y);
}

fn leaf_of(shard: Shard, position: u32) -> u32 {
    let chunk = (position - shard.start) / CHUNK;
    if JOIN { return ((shard.index - params.first_shard) << params.chunk_bits) + chunk; }
    return chunk;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = id.x + id.y * params.width;
    var at = t / params.quads;
    let column = t % params.quads * 4u;
    if at >= params.n { return; }
    let own = order[at];
    if own.x >= params.rows || own.y < params.first || own.y >= params.end { return; }
    var shard = shard_of(own.y);
    // The positions of this sum.
    let first = select(shard.start, params.first, JOIN);
    let end = select(shard.end, params.end, JOIN);
    let before = order[max(at, 1u) - 1u];
    if at > 0u && before.x == own.x && before.y >= first { return; }
    let last = params.columns - 1u - column;
    var position = own.y;
    var leaf = leaf_of(shard, position);
    var sum = vec4<f32>();
    // A loop is left at its head: some compilers lose what an invocation that leaves elsewhere has computed.
    var goes_on = true;
    while goes_on {
        sum = kept(sum) + b_quad(params.b_offset + position * params.columns + column, last);
        at++;
        let next = order[min(at, params.n - 1u)];
        goes_on = at < params.n && next.x == own.x && next.y < end;
        if goes_on {
            position = next.y;
            if position >= shard.end { shard = shard_of(position); }
            let following = leaf_of(shard, position);
            if following != leaf {
                close(canonical(sum), firstLeadingBit(leaf ^ following));
                sum = vec4<f32>();
                leaf = following;
            }
        }
    }
    let to = params.c_offset + select(shard.index * params.c_batch, 0u, JOIN);
    put_quad(to + own.x * params.columns + column, last, total(canonical(sum)));
}
