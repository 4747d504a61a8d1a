// Returns the products of the invocation's four rows of ROWS, of the 32 from `first` on, with its four places
// of OWN, of the 64 from `own` on. Every invocation must call it.
fn scores_ROWS_OWN(first: u32, own: u32) -> mat4x4<f32> {
    let steps = t % 4u * 4u;
    let four = t / 4u;
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var c = 0u; c < WIDTH; c += 16u) {
        var block: mat4x4<f32>;
        let is_inside = c + steps < WIDTH;
        if four < 16u {
            if is_inside {
                for (var r = 0u; r < 4u; r++) { block[r] = OWN_four(own + 4u * four + r, c + steps); }
            }
            put_own(block, four, steps);
        } else if four < 24u {
            if is_inside {
                for (var r = 0u; r < 4u; r++) { block[r] = ROWS_four(first + 4u * (four - 16u) + r, c + steps); }
            }
            put_rows(block, four - 16u, steps);
        }
        workgroupBarrier();
        for (var d = 0u; d < 16u; d++) {
            let x = row_slab[d * 8u + ((t / 16u) ^ (d / 4u * 2u))];
            let y = own_slab[d * 16u + ((t % 16u) ^ (d / 4u * 2u))];
            s0 = fma(x.xxxx, y, s0);
            s1 = fma(x.yyyy, y, s1);
            s2 = fma(x.zzzz, y, s2);
            s3 = fma(x.wwww, y, s3);
        }
        workgroupBarrier();
    }
    return mat4x4<f32>(s0, s1, s2, s3);
}
