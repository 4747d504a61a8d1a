// Number, until: what sum_quads.wgsl has beyond sum.wgsl, for one number at a time.
alias Number = f32;

fn until(x: Number, e: u32, used: u32) -> Number {
    return select(0.0, x, e < used);
}
