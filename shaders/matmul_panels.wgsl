// matmul_panels: the product of snippets/product.wgsl for a CPU, whose memory is fast if it is read in
// order. An invocation computes ROWS rows and 32 columns of each of its panels. It copies what it needs of b
// once, step by step, and multiplies it with eight rows of a at a time, which are read where they are, or
// from a copy if a is a view or of f16. All memory is the invocation's own: there are no barriers.
// `unisono_panel_product` is what takes the time, and then `unisono_panel_copy`, the copies of views,
// `unisono_view_stripe` and `unisono_view_panel`, and `unisono_panel_add`, which writes the result where the
// epilogue adds numbers in memory. unisono-cpu has code of its own for them.
// Grid: x: 32 * PANELS columns each; y: ROWS rows each; z: batch * chunks, or groups of joined shards, or
// batch where the chunks of a product are joined.
// Constants: ROWS, a multiple of eight; PANELS, more than one if copies of a take long; CHUNKS, whether JOIN
// is for chunks; SEGMENT: 0, or the steps of a segment, and JOIN is for segments: their sums are added one
// after the other from the last segment to the first, not by the tree; SHARDS, the sums of shards, chunks or
// segments that may wait; STEPS: the steps for which there is memory; STRIPE: the vectors that a copy of a
// takes; those of product.wgsl. Functions generated for the product: left, which returns an element of a or
// of its copy; left_steps, which prepares the copies of all rows; left_rows, which makes a copy, and returns
// where the eight rows begin and how far apart two steps are; copy_panel, which copies what is needed of b
// unless it is packed (packed_panels.wgsl); panel_start, which returns the step at which panel q begins, the
// panel of the columns from j on; panel_quad, which returns element 8 * p + h of the panels: step p of the
// columns 4 * h to 4 * h + 3; goal_of, which returns where eight rows of sums go: to the result, or to a tile
// if there is an epilogue (HAS_TILE says so); put_sums, which writes four of them; and put_tile, which writes
// a tile to the result.

// Sums of 2^l shards or chunks at level l, at most one a level, each with the rows of a tile. Sums of
// segments wait at level 0.
var<workgroup> waiting: array<vec4<f32>, 8u * ROWS * PANELS * SHARDS>;

// In the place of a level: the sum is complete, and waits for no other.
const COMPLETE: u32 = 0xffffffffu;

struct Rows { at: array<u32, 8>, step: u32 }

// The elements that a block of sums is written to. Column c of row r goes to element `at + r * step + c`, as
// long as c is less than `split`. The columns from `split` on are cut into pieces of `width` columns, such as
// those of one sample, and each piece lies `jump` elements further than the piece before it. A block has at
// most 8 rows and 32 columns. `split` and `width` are multiples of four, and not 0.
struct Goal { at: u32, step: u32, rows: u32, columns: u32, split: u32, width: u32, jump: u32 }

// Computes eight rows: the sums over `steps` steps of a panel, which begins at step `first`. Adds the sums
// that wait at the first `levels` levels, from row `row` on. The results wait at level `waits_at`, or go to
// `goal` if they are COMPLETE.
fn unisono_panel_product(
    rows: Rows, steps: u32, first: u32, row: u32, levels: u32, waits_at: u32, goal: Goal
) {
    var at = rows.at;
    for (var r = 0u; r < 8u; r++) {
        for (var h = 0u; h < 8u; h++) {
            let e = 8u * (row + r) + h;
            var sum = vec4<f32>();
            for (var p = 0u; p < steps; p++) {
                sum = fma(vec4<f32>(left(at[r] + p * rows.step)), panel_quad(8u * (first + p) + h), sum);
            }
            for (var level = 0u; level < levels; level++) {
                sum = kept(waiting[8u * ROWS * PANELS * level + e]) + canonical(sum);
            }
            let c = 4u * h;
            if waits_at != COMPLETE {
                waiting[8u * ROWS * PANELS * waits_at + e] = canonical(sum);
            } else if r < goal.rows && c < goal.columns {
                var jumps = 0u;
                if c >= goal.split { jumps = 1u + (c - goal.split) / goal.width; }
                let to = goal.at + r * goal.step + c + jumps * goal.jump;
                put_sums(to, goal.columns - 1u - c, canonical(sum));
            }
        }
    }
}

// Returns the product of the layer's shard, chunk or segment number s. Behind the last one its inner range is
// empty.
fn joined_part(layer: u32, s: u32) -> Part {
    if !CHUNKS && SEGMENT == 0u { return shard_part(layer, s); }
    var own = part(layer);
    if SEGMENT > 0u {
        own.start += (params.join - 1u - s) * SEGMENT;
        own.end = own.start + SEGMENT;
        return own;
    }
    let end = inner_range(params.first_z + layer).y;
    own.start = min(own.start + s * CHUNK, end);
    own.end = min(own.start + CHUNK, end);
    return own;
}

// Multiplies a part of a layer, and adds what waits at the first levels.
fn multiply(own: Part, i0: u32, j0: u32, rows: u32, levels: u32, waits_at: u32) {
    let steps = max(own.end, own.start) - own.start;
    let panels = min(PANELS, (params.n - j0 + 31u) / 32u);
    for (var q = 0u; q < panels; q++) { copy_panel(own, j0 + 32u * q, steps, q * STEPS); }
    left_steps(own, steps);
    for (var i = 0u; i < rows; i += 8u) {
        let left = left_rows(own, i0 + i, steps);
        for (var q = 0u; q < panels; q++) {
            let j = j0 + 32u * q;
            let row = q * ROWS + i;
            let to = goal_of(own, i0 + i, j, row);
            unisono_panel_product(left, steps, panel_start(own, j, q), row, levels, waits_at, to);
        }
    }
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    let j0 = group.x * 32u * PANELS;
    let i0 = group.y * ROWS;
    let rows = min(ROWS, params.m - i0);
    if JOIN {
        // Shard or chunk s meets those before it as a carry meets the ones of a number, which is the order
        // of the tree.
        for (var s = 0u; s < params.join; s++) {
            var levels = 0u;
            for (var rest = s; rest % 2u == 1u; rest /= 2u) { levels++; }
            var next = levels;
            if SEGMENT > 0u {
                levels = min(s, 1u);
                next = 0u;
            }
            let waits_at = select(COMPLETE, next, s + 1u < params.join);
            multiply(joined_part(group.z, s), i0, j0, rows, levels, waits_at);
        }
    } else {
        multiply(part(group.z), i0, j0, rows, 0u, COMPLETE);
    }
    var own: Part;
    if JOIN { own = joined_part(group.z, 0u); } else { own = part(group.z); }
    for (var q = 0u; q < PANELS && j0 + 32u * q < params.n; q++) {
        put_tile(own, i0, j0 + 32u * q, rows, q * ROWS);
    }
}
