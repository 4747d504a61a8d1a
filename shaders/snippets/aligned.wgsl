// aligned_sum: the sum of a number and 16 products of f16, as the tensor cores of NVIDIA's Hopper add them
// (seen on an H200 by Vulkan): all terms are cut off at 25 bits below the largest exponent among them, added
// exactly, and the result is cut off to the 24 bits of f32. The exponent of a product is the sum of those of
// its factors, although the product may be twice as large. Where a factor is infinite or not a number, so is
// the sum.

struct Sixteen { x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32> }

// The exponents of numbers that f16 holds: its subnormal numbers have the smallest one.
fn exponents(x: vec4<f32>) -> vec4<i32> {
    let biased = bitcast<vec4<u32>>(x) >> vec4<u32>(23u) & vec4<u32>(255u);
    return max(vec4<i32>(biased) - vec4<i32>(127), vec4<i32>(-14));
}

// The largest of `least` and the exponents of products that are not 0.
fn largest_exponent(a: vec4<f32>, b: vec4<f32>, least: i32) -> i32 {
    let together = exponents(a) + exponents(b);
    let counted = select(together, vec4<i32>(-128), a * b == vec4<f32>());
    return max(max(counted.x, counted.y), max(max(counted.z, counted.w), least));
}

fn two_to(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// The sum of four terms, cut off.
fn four_terms(a: vec4<f32>, b: vec4<f32>, scale: f32) -> i32 {
    let terms = vec4<i32>(a * b * vec4<f32>(scale));
    return (terms.x + terms.y) + (terms.z + terms.w);
}

fn aligned_sum(a: Sixteen, b: Sixteen, sum: f32) -> f32 {
    let own = i32((bitcast<u32>(sum) >> 23u) & 255u) - 127;
    let e = largest_exponent(a.w, b.w, largest_exponent(a.z, b.z, largest_exponent(a.y, b.y,
        largest_exponent(a.x, b.x, max(own, -100)))));
    if e > 100 {
        let all = (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
        return sum + ((all.x + all.y) + (all.z + all.w));
    }
    let scale = two_to(25 - e);
    // Each half is below 2^31.
    let first = four_terms(a.x, b.x, scale) + four_terms(a.y, b.y, scale) + i32(sum * scale);
    let second = four_terms(a.z, b.z, scale) + four_terms(a.w, b.w, scale);
    let sizes = vec2<u32>(abs(vec2<i32>(first, second)));
    let signs = vec2<i32>(first, second) < vec2<i32>();
    let size = select(max(sizes.x, sizes.y) - min(sizes.x, sizes.y), sizes.x + sizes.y, signs.x == signs.y);
    let kept = f32(size & (0xffffffffu << (8u - min(countLeadingZeros(size), 8u))));
    return select(kept, -kept, select(signs.y, signs.x, sizes.x >= sizes.y)) * two_to(e - 25);
}
