// Grid: x: four queries each; z: the pairs of sample and head.

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    enter(params.first_z + group.z);
    let own = group.x * 4u;
    let end = select(S, min(S, own + 4u), CAUSAL);
    let lse = vec4<f32>(lse_at(own), lse_at(own + 1u), lse_at(own + 2u), lse_at(own + 3u));
    let delta = vec4<f32>(delta_at(own), delta_at(own + 1u), delta_at(own + 2u), delta_at(own + 3u));
    for (var first = 0u; first < end; first += BLOCK) {
        var tile: Tile;
        scores_k_q(first, own, &tile);
        for (var g = 0u; g < 8u; g++) {
            var four: Four;
            for (var r = 0u; r < 4u; r++) {
                four[r] = select(vec4<f32>(), exp4(tile[0][r] - lse), seen4(own, first + 4u * g + r));
            }
            turn(&tile, four);
        }
        var slopes: Tile;
        scores_v_dy(first, own, &slopes);
        var gradients: Tile;
        for (var g = 0u; g < 8u; g++) {
            for (var r = 0u; r < 4u; r++) { gradients[g][r] = tile[g][r] * (slopes[g][r] - delta); }
        }
        for (var c = 0u; c < columns(D); c += 4u) {
            var sums: mat4x4<f32>;
            if first > 0u { sums = dq_so_far(own, c); }
            sums = spread_k(&gradients, first, c, sums);
            if first + BLOCK >= end {
                for (var i = 0u; i < 4u; i++) { sums[i] = canonical(sums[i] * SCALE); }
            }
            dq_keep(own, c, sums);
        }
    }
}
