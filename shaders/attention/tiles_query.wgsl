// Grid: x: 64 queries each; z: the pairs of sample and head.

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    enter(params.first_z + group.z);
    let own = group.x * OWN;
    let end = select(S, min(S, own + OWN), CAUSAL);
    let query = own + t % 16u * 4u;
    let lse = vec4<f32>(lse_at(query), lse_at(query + 1u), lse_at(query + 2u), lse_at(query + 3u));
    let delta = vec4<f32>(delta_at(query), delta_at(query + 1u), delta_at(query + 2u), delta_at(query + 3u));
    //RESULTS dq
    for (var first = 0u; first < end; first += BLOCK) {
        let scores = scores_k_q(first, own);
        let slopes = scores_v_dy(first, own);
        var four: mat4x4<f32>;
        for (var r = 0u; r < 4u; r++) {
            let weight = select(vec4<f32>(), exp4(scores[r] - lse), seen4(query, first + t / 16u * 4u + r));
            four[r] = weight * (slopes[r] - delta);
        }
        put_tile(four);
        //EACH dqN = spread_k(first, FIRST, dqN);
    }
    //EACH dq_keep(own, FIRST, scaled(dqN, vec4<f32>(SCALE), vec4<f32>(SCALE)));
}
