// Grid: x: 64 queries each; z: the pairs of sample and head.

// For each four queries the factor of their results so far.
var<workgroup> factors: array<vec4<f32>, 16>;

fn one_over(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(quotient(1.0, x.x), quotient(1.0, x.y), quotient(1.0, x.z), quotient(1.0, x.w));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    enter(params.first_z + group.z);
    let own = group.x * OWN;
    let end = select(S, min(S, own + OWN), CAUSAL);
    let query = own + t % 16u * 4u;
    var top = vec4<f32>(LOWEST);
    var total = vec4<f32>();
    //RESULTS out
    for (var first = 0u; first < end; first += BLOCK) {
        var four = scores_k_q(first, own);
        // Between products row_slab holds what fours of keys have for each query.
        var highest = top;
        for (var r = 0u; r < 4u; r++) {
            four[r] = select(vec4<f32>(LOWEST), four[r], seen4(query, first + t / 16u * 4u + r));
            highest = max_of(highest, four[r]);
        }
        row_slab[t] = highest;
        workgroupBarrier();
        for (var g = 0u; g < 8u; g++) { highest = max_of(highest, row_slab[g * 16u + t % 16u]); }
        workgroupBarrier();
        var sum = vec4<f32>();
        for (var r = 0u; r < 4u; r++) {
            four[r] = select(exp4(four[r] - highest), vec4<f32>(), four[r] == vec4<f32>(LOWEST));
            sum = kept(sum) + four[r];
        }
        let fade = exp4(top - highest);
        row_slab[t] = sum;
        if t < 16u { factors[t] = fade; }
        put_tile(four);
        workgroupBarrier();
        sum = vec4<f32>();
        for (var g = 0u; g < 8u; g++) { sum = kept(sum) + row_slab[g * 16u + t % 16u]; }
        total = fma(total, fade, sum);
        top = highest;
        //EACH if first > 0u { outN = scaled(outN, factors[t / 16u * 2u], factors[t / 16u * 2u + 1u]); }
        //EACH outN = spread_v(first, FIRST, outN);
    }
    if t < 16u { factors[t] = select(one_over(total), vec4<f32>(), total == vec4<f32>()); }
    workgroupBarrier();
    //EACH out_keep(own, FIRST, scaled(outN, factors[t / 16u * 2u], factors[t / 16u * 2u + 1u]));
    //IF LSE
    if t < 16u {
        for (var r = 0u; r < 4u; r++) { lse_put(query + r, top[r] + log_(total[r])); }
    }
    //END LSE
}
