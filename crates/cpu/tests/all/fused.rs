//! With `Rounding::Fused` every `fma` rounds once: of scalars, of vectors, of scalars that become vectors, in
//! native code, and of numbers that are known when a kernel is compiled.

use crate::common::{Machine, bytes_of, floats};
use unisono_cpu::{Options, Rounding};

/// The number of operations of each kind.
const COUNT: usize = 1 << 18;

const KERNEL: &str = "
@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> c: array<vec4<f32>>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    BODY
}";
/// The bodies, each another way to the same bits.
const BODIES: [&str; 3] = [
    "y[i] = fma(a[i], b[i], c[i]);",
    "var out: vec4<f32>;
    for (var s = 0u; s < 4u; s++) { out[s] = fma(a[i][s], b[i][s], c[i][s]); }
    y[i] = out;",
    "let s = a[i].x; y[i] = vec4<f32>(fma(s, b[i].x, c[i].x), fma(a[i].y, b[i].y, c[i].y),
        fma(a[i].z, b[i].z, c[i].z), fma(a[i].w, b[i].w, c[i].w));",
];

/// Returns finite numbers of all sizes, and some for which products and sums nearly cancel.
fn operands() -> [Vec<f32>; 3] {
    let word = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) as u32;
    let number = |i: usize| {
        let number = f32::from_bits(word(i) & 0xbfff_ffff | (word(i + 7) & 1) << 30);
        if number.is_finite() { number } else { 1.5 }
    };
    let a: Vec<f32> = (0..COUNT).map(|i| number(2 * i)).collect();
    let b: Vec<f32> = (0..COUNT).map(|i| number(2 * i + 1)).collect();
    let c = (0..COUNT).map(|i| if i % 3 == 0 { -(a[i] * b[i]) } else { number(5 * i + 3) }).collect();
    [a, b, c]
}

fn machine(rounding: Rounding) -> Machine {
    Machine::with(Options { threads: 1, rounding, ..Options::default() })
}

#[test]
fn every_fma_rounds_once() {
    let [a, b, c] = operands();
    let given = [&a, &b, &c].map(|numbers| bytes_of(numbers));
    let given: Vec<&[u8]> = given.iter().map(|bytes| &bytes[..]).collect();
    for (rounding, rounded) in [
        (Rounding::Fused, (|x: f32, y: f32, z: f32| x.mul_add(y, z)) as fn(f32, f32, f32) -> f32),
        (Rounding::Split, |x, y, z| x * y + z),
    ] {
        for body in BODIES {
            let wgsl = KERNEL.replace("BODY", body);
            // `Machine::run` compares kernels with bounds checks and without.
            let groups = [(COUNT / 256) as u32, 1, 1];
            let found = floats(&machine(rounding).run(&wgsl, 4 * COUNT, &given, groups));
            for i in 0..COUNT {
                let expected = rounded(a[i], b[i], c[i]);
                let same = found[i].to_bits() == expected.to_bits() || found[i].is_nan() && expected.is_nan();
                assert!(
                    same,
                    "{rounding:?}: {:e} * {:e} + {:e}: {:e}, not {expected:e}",
                    a[i], b[i], c[i], found[i]
                );
            }
        }
    }
}

#[test]
fn numbers_that_are_known_round_once_too() {
    let wgsl = "
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
fn tie(x: f32) -> f32 { return fma(x, x, fma(x, -2.0, 1.0)); }
@compute @workgroup_size(1) fn main() {
    y[0] = tie(1.000244140625);
    y[1] = fma(y[1] + 1.000244140625, 1.000244140625, -1.00048828125);
}";
    let of = |rounding| floats(&machine(rounding).run(wgsl, 8, &[], [1, 1, 1]));
    assert_eq!(of(Rounding::Fused), [2f32.powi(-24); 2]);
    assert_eq!(of(Rounding::Split), [0.0; 2]);
}
