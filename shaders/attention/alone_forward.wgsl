// Grid: x: four queries each; z: the pairs of sample and head.

fn one_over(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(quotient(1.0, x.x), quotient(1.0, x.y), quotient(1.0, x.z), quotient(1.0, x.w));
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    enter(params.first_z + group.z);
    let own = group.x * 4u;
    let end = select(S, min(S, own + 4u), CAUSAL);
    var top = vec4<f32>(LOWEST);
    var total = vec4<f32>();
    for (var first = 0u; first < end; first += BLOCK) {
        var tile: Tile;
        scores_k_q(first, own, &tile);
        var highest = top;
        for (var g = 0u; g < 8u; g++) {
            var four: Four;
            for (var r = 0u; r < 4u; r++) {
                four[r] = select(vec4<f32>(LOWEST), tile[0][r], seen4(own, first + 4u * g + r));
                highest = max_of(highest, four[r]);
            }
            turn(&tile, four);
        }
        let fade = exp4(top - highest);
        // Four keys are added one by one, and then the fours one by one.
        var sum = vec4<f32>();
        for (var g = 0u; g < 8u; g++) {
            var four: Four;
            var four_sum = vec4<f32>();
            for (var r = 0u; r < 4u; r++) {
                let score = tile[0][r];
                four[r] = select(exp4(score - highest), vec4<f32>(), score == vec4<f32>(LOWEST));
                four_sum = kept(four_sum) + four[r];
            }
            sum = kept(sum) + kept(four_sum);
            turn(&tile, four);
        }
        total = fma(total, fade, sum);
        top = highest;
        let is_last = first + BLOCK >= end;
        let share = select(one_over(total), vec4<f32>(), total == vec4<f32>());
        for (var c = 0u; c < columns(E); c += 4u) {
            var sums: mat4x4<f32>;
            if first > 0u {
                sums = out_so_far(own, c);
                for (var i = 0u; i < 4u; i++) { sums[i] = canonical(sums[i] * fade); }
            }
            sums = spread_v(&tile, first, c, sums);
            if is_last {
                for (var i = 0u; i < 4u; i++) { sums[i] = canonical(sums[i] * share); }
            }
            out_keep(own, c, sums);
        }
    }
    //IF LSE
    for (var r = 0u; r < 4u; r++) { lse_put(own + r, top[r] + log_(total[r])); }
    //END LSE
}
