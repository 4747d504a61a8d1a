// canonical, sum_add, max_of: the functions of sum.wgsl for four numbers at once.
alias Number = vec4<f32>;

fn canonical(x: Number) -> Number {
    let bits = bitcast<vec4<u32>>(x);
    let magnitude = bitcast<vec4<i32>>(bits & vec4<u32>(0x7fffffffu));
    return bitcast<Number>(select(bits, vec4<u32>(), magnitude <= vec4<i32>(0x00800000)));
}

fn sum_add(a: Number, b: Number) -> Number {
    return canonical(canonical(a) + canonical(b));
}

fn max_of(a: Number, b: Number) -> Number {
    return select(a, b, b > a);
}

// until: returns the e-th four of an array, with 0 for the elements from `used` on.
fn until(x: Number, e: u32, used: u32) -> Number {
    return select(Number(0.0), x, vec4<u32>(0u, 1u, 2u, 3u) + 4u * e < vec4<u32>(used));
}
