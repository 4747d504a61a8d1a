// sort_digits: the pairs (id, position) of each tile of TILE positions in ascending order, for devices with
// few threads. Ids that are not below params.rows become params.rows, so that they stand last.
// A radix sort: PASSES times the pairs are put in the order of 8 bits of their ids, the lowest ones first.
// Pairs that are equal there keep their order.
// Shapes: ids: [n] from params.offset on; y, z: [n] pairs. The result is in y. Every other pass writes z.
// Grid: one workgroup a tile. The result is the same whatever the tiles: no two pairs are equal.
// Constants: TILE; PASSES: enough for the bits of params.rows.

@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> z: array<vec2<u32>>;

const DIGITS: u32 = 256u;

// The place of the next pair with each digit.
var<private> places: array<u32, DIGITS>;

fn pair(step: u32, position: u32) -> vec2<u32> {
    if step == 0u {
        return vec2<u32>(min(bitcast<u32>(ids[params.offset + position]), params.rows), position);
    }
    if (PASSES - step) % 2u == 1u { return z[position]; }
    return y[position];
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    let first = group.x * TILE;
    let end = min(first + TILE, params.n);
    for (var step = 0u; step < PASSES; step++) {
        let shift = 8u * step;
        for (var digit = 0u; digit < DIGITS; digit++) { places[digit] = 0u; }
        for (var at = first; at < end; at++) { places[(pair(step, at).x >> shift) & 255u] += 1u; }
        var next = first;
        for (var digit = 0u; digit < DIGITS; digit++) {
            let count = places[digit];
            places[digit] = next;
            next += count;
        }
        for (var at = first; at < end; at++) {
            let own = pair(step, at);
            let digit = (own.x >> shift) & 255u;
            let to = places[digit];
            places[digit] = to + 1u;
            if (PASSES - step) % 2u == 1u { y[to] = own; } else { z[to] = own; }
        }
    }
}
