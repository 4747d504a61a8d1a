// flush: returns x, or +0 where the magnitude of x is at most 2^-126: for zeros, for subnormal numbers, and
// for the smallest normal one, to which a driver may or may not round a number just below it.
//
// Every op of f32 has such a result (docs/NUMERICS.md). Since the result is rebuilt from its bits, it is also
// a barrier: no compiler merges the operations before it with those after it.
fn flush(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, bitcast<i32>(bits & 0x7fffffffu) <= 0x00800000));
}
