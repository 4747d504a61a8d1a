// EXPONENT, exponents, exponent: the bits of the exponent of four numbers or of one. All of them are 1 in a
// number that is infinite, and in one that is not a number. Because these are integers, a compiler that takes
// all numbers for finite cannot drop the comparison.
const EXPONENT: u32 = 0x7f800000u;

fn exponents(x: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(x) & vec4<u32>(EXPONENT);
}

fn exponent(x: f32) -> u32 {
    return bitcast<u32>(x) & EXPONENT;
}
