// Grid: x: four keys each; z: the pairs of sample and head.
// What is between the marks of a gradient, K or V, is there if the kernel computes it.

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    enter(params.first_z + group.z);
    let own = group.x * 4u;
    // Of keys that no query sees one block is computed, so that zeros are stored.
    let start = select(0u, min(own, T - 1u) / BLOCK * BLOCK, CAUSAL);
    for (var first = start; first < T; first += BLOCK) {
        let is_last = first + BLOCK >= T;
        var tile: Tile;
        scores_q_k(first, own, &tile);
        for (var g = 0u; g < 8u; g++) {
            var four: Four;
            for (var r = 0u; r < 4u; r++) {
                let row = first + 4u * g + r;
                four[r] = select(vec4<f32>(), exp4(tile[0][r] - lse_at(row)), sees4(own, row));
            }
            turn(&tile, four);
        }
        //IF V
        {
            for (var c = 0u; c < columns(E); c += 4u) {
                var sums: mat4x4<f32>;
                if first > start { sums = dv_so_far(own, c); }
                sums = spread_dy(&tile, first, c, sums);
                if is_last {
                    for (var i = 0u; i < 4u; i++) { sums[i] = canonical(sums[i]); }
                }
                dv_keep(own, c, sums);
            }
        }
        //END V
        //IF K
        {
            var slopes: Tile;
            scores_dy_v(first, own, &slopes);
            var gradients: Tile;
            for (var g = 0u; g < 8u; g++) {
                for (var r = 0u; r < 4u; r++) {
                    gradients[g][r] = tile[g][r] * (slopes[g][r] - delta_at(first + 4u * g + r));
                }
            }
            for (var c = 0u; c < columns(D); c += 4u) {
                var sums: mat4x4<f32>;
                if first > start { sums = dk_so_far(own, c); }
                sums = spread_q(&gradients, first, c, sums);
                if is_last {
                    for (var i = 0u; i < 4u; i++) { sums[i] = canonical(sums[i]); }
                }
                dk_keep(own, c, sums);
            }
        }
        //END K
    }
}
