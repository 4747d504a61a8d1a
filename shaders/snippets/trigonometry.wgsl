// sin_, cos_: sine and cosine for |x| up to 12,000, within about 2 units in the last place of 1.
// x = k pi/2 + r with |r| <= pi/4. pi/2 is subtracted in three parts whose products with k are exact, so that
// no two nested fma share a factor (Mesa would factor them). The polynomials are those of Cephes' sinf and
// cosf. Needs params.zero.

fn quarter_turns(x: f32) -> i32 {
    return i32(round(x * 0.63661975));
}

fn quarter_rest(x: f32, k: i32) -> f32 {
    let high = fma(f32(k * 201), -0.0078125, x);
    let middle = fma(f32(k * 2029), -2.384185791015625e-07, high);
    return fma(f32(k * 1297), -5.820766091346741e-11, middle);
}

fn sine_part(r: f32) -> f32 {
    let z = r * r;
    let tail = fma(fma(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1);
    return fma(r * z, tail, r);
}

// The square is rebuilt from its bits, so that it is squared in turn where a compiler may multiply in another
// order.
fn cosine_part(r: f32) -> f32 {
    let z = bitcast<f32>(bitcast<u32>(r * r) ^ params.zero);
    let tail = fma(fma(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2);
    return fma(z * z, tail, fma(z, -0.5, 1.0));
}

fn quarter_wave(r: f32, turns: i32) -> f32 {
    let value = select(sine_part(r), cosine_part(r), (turns & 1) == 1);
    return select(value, -value, (turns & 2) == 2);
}

fn sin_(x: f32) -> f32 {
    let k = quarter_turns(x);
    return quarter_wave(quarter_rest(x, k), k);
}

fn cos_(x: f32) -> f32 {
    let k = quarter_turns(x);
    return quarter_wave(quarter_rest(x, k), k + 1);
}
