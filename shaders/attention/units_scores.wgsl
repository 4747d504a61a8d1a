// Returns the products of the invocation's four rows of ROWS, of the 32 from `first` on, with its four places
// of OWN, of the 64 from `own` on. Every invocation must call it.
fn scores_ROWS_OWN(first: u32, own: u32) -> mat4x4<f32> {
    let steps = t % 4u * 4u;
    let four = t / 4u;
    var result: mat4x4<f32>;
    //VARIABLES
    for (var c = 0u; c < WIDTH; c += 16u) {
        var block: mat4x4<f32>;
        let is_inside = c + steps < WIDTH;
        if four < 16u {
            if is_inside {
                for (var r = 0u; r < 4u; r++) { block[r] = OWN_four(own + 4u * four + r, c + steps); }
            }
            put_halves(block, 4u * four, steps);
        } else if four < 24u {
            let row = 4u * (four - 16u);
            if is_inside {
                for (var r = 0u; r < 4u; r++) { block[r] = ROWS_four(first + row + r, c + steps); }
            }
            put_halves(block, BEHIND + row, steps);
        }
        workgroupBarrier();
        //PRODUCTS
        workgroupBarrier();
    }
    //RESULT
    for (var r = 0u; r < 4u; r++) { result[r] = canonical(result[r]FACTOR); }
    return result;
}
