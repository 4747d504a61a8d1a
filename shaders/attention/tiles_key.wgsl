// Grid: x: 64 keys each; z: the pairs of sample and head.
// What is between the marks of a gradient, K or V, is there if the kernel computes it.

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    enter(params.first_z + group.z);
    let own = group.x * OWN;
    let key = own + t % 16u * 4u;
    // Of keys that no query sees one block is computed, so that zeros are stored.
    let start = select(0u, min(own, T - 1u) / BLOCK * BLOCK, CAUSAL);
    //RESULTS dv
    //RESULTS dk
    for (var first = start; first < T; first += BLOCK) {
        let scores = scores_q_k(first, own);
        let row = first + t / 16u * 4u;
        var weights: mat4x4<f32>;
        for (var r = 0u; r < 4u; r++) {
            weights[r] = select(vec4<f32>(), exp4(scores[r] - lse_at(row + r)), sees4(key, row + r));
        }
        //IF V
        {
            put_tile(weights);
            //EACH dv dvN = spread_dy(first, FIRST, dvN);
        }
        //END V
        //IF K
        {
            let slopes = scores_dy_v(first, own);
            var four: mat4x4<f32>;
            for (var r = 0u; r < 4u; r++) { four[r] = weights[r] * (slopes[r] - delta_at(row + r)); }
            put_tile(four);
            //EACH dk dkN = spread_q(first, FIRST, dkN);
        }
        //END K
    }
    //EACH dv dv_keep(own, FIRST, canonical_results(dvN));
    //EACH dk dk_keep(own, FIRST, canonical_results(dkN));
}
