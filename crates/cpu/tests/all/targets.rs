//! CPUs with fewer instructions than this one compute the same bits, and kernels compile for other
//! ones.

use crate::common::{Machine, bytes_of, bytes_of_words, words};
use unisono_cpu::Options;
use unisono_cpu::targets::ALL;

const X: &str = "@group(0) @binding(0) var<storage, read_write> out: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> n: array<vec4<u32>>;
fn bits(x: vec4<f32>) -> vec4<u32> { return bitcast<vec4<u32>>(x); }
fn one(x: f32) -> vec4<u32> { return bitcast<vec4<u32>>(vec4<f32>(x, -x, x + 1.0, 0.5)); }
";

/// Expressions that need instructions which not all CPUs have, as vectors of four and as scalars.
const EXPRESSIONS: &[&str] = &[
    "bits(floor(a))",
    "bits(ceil(a))",
    "bits(trunc(a))",
    "bits(round(a))",
    "one(floor(a.x))",
    "one(ceil(a.y))",
    "one(trunc(a.z))",
    "one(round(a.w))",
    "bits(fract(a))",
    "bits(min(a, b))",
    "bits(max(a, b))",
    "bits(clamp(a, vec4<f32>(-1.0), b))",
    "bits(sign(a))",
    "bits(abs(a))",
    "bits(-a)",
    "bits(sqrt(abs(a)))",
    "bits(inverseSqrt(abs(b)))",
    "bits(fma(a, b, a))",
    "bits(a * b)",
    "bits(a + b)",
    "bits(a - b)",
    "bits(a / b)",
    "one(a.x * b.y)",
    "one(a.z / b.w)",
    "bits(select(a, b, a < b))",
    "bits(select(a, b, a == b))",
    "vec4<u32>(a)",
    "bitcast<vec4<u32>>(vec4<i32>(a))",
    "vec4<u32>(u32(a.x), bitcast<u32>(i32(a.y)), u32(a.z), 1u)",
    "bits(vec4<f32>(p))",
    "bits(vec4<f32>(bitcast<vec4<i32>>(p)))",
    "one(f32(p.x))",
    "one(f32(bitcast<i32>(p.y)))",
    "min(p, q)",
    "max(p, q)",
    "p * q",
    "p / max(q, vec4<u32>(1u))",
    "p % max(q, vec4<u32>(1u))",
    "bitcast<vec4<u32>>(min(bitcast<vec4<i32>>(p), bitcast<vec4<i32>>(q)))",
    "bitcast<vec4<u32>>(max(bitcast<vec4<i32>>(p), bitcast<vec4<i32>>(q)))",
    "bitcast<vec4<u32>>(abs(bitcast<vec4<i32>>(p)))",
    "p << (q % vec4<u32>(32u))",
    "p >> vec4<u32>(q.x % 32u)",
    "bitcast<vec4<u32>>(bitcast<vec4<i32>>(p) >> vec4<u32>(q.x % 32u))",
    "select(p, q, p < q)",
    "~p ^ q | p & q",
    "vec4<u32>(countOneBits(p.x), countLeadingZeros(q.y), countTrailingZeros(p.z), reverseBits(q.w))",
    "vec4<u32>(u32(all(p < q)), u32(any(a < b)), firstLeadingBit(q.x), u32(u64(p.x) * u64(q.y) >> 32u))",
    "bits(transpose(mat4x4<f32>(a, b, a * 2.0, b + a))[1])",
    "p.wzyx",
    "vec4<u32>(p[q.x % 4u], q[p.y % 4u], 0u, 1u)",
    "bits(vec4<f32>(vec4<f16>(a)))",
    "bits(vec4<f32>(f32(f16(a.x)), f32(f16(b.y)), 1.0, 2.0))",
];

/// Numbers of all kinds but NaN: infinite ones, zeros, subnormal ones, ties, and those at the ends of
/// integers.
fn floats() -> Vec<f32> {
    let mut all = vec![
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        -2.5,
        8_388_607.5,
        -8_388_607.5,
        8_388_608.0,
        4_194_303.5,
        2_147_483_648.0,
        -2_147_483_648.0,
        4_294_967_296.0,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x8000_0001),
        f32::from_bits(0x007f_ffff),
        0.3,
        -0.3,
        0.999_999_94,
        -0.999_999_94,
        65_504.0,
        65_520.0,
        6e-8,
        -6e-8,
    ];
    all.extend((0..4064u32).map(|i| {
        let bits = i.wrapping_mul(0x9e37_79b9);
        let exponent = if i % 3 == 0 { bits >> 23 & 0xff } else { 100 + (bits >> 23) % 60 };
        f32::from_bits(bits & 0x807f_ffff | exponent.min(254) << 23)
    }));
    all
}

/// Sets the mode in which subnormal numbers are zeros, as `unisono-gpu` does.
#[cfg(target_arch = "x86_64")]
fn flush() {
    let mut mode = 0u32;
    // SAFETY: no exception is unmasked, and the threads that do this compute kernels alone.
    #[expect(unsafe_code, reason = "the register has no safe name")]
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode);
        mode |= 0x8040;
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode);
    }
}

#[cfg(target_arch = "aarch64")]
fn flush() {
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "the register has no safe name")]
    unsafe {
        std::arch::asm!("mrs {0}, fpcr", "orr {0}, {0}, #0x1000000", "msr fpcr, {0}", out(reg) _);
    }
}

/// Returns the kernel that writes one vector for each expression.
fn kernel() -> String {
    let lines: String = EXPRESSIONS
        .iter()
        .enumerate()
        .map(|(at, text)| format!("    out[{}u * i + {at}u] = {text};\n", EXPRESSIONS.len()))
        .collect();
    format!(
        "enable f16;\n{X}@compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    let a = x[i];
    let b = x[(i * 7u + 3u) % 1024u];
    let p = n[i];
    let q = n[(i * 5u + 1u) % 1024u];
{lines}}}"
    )
}

#[test]
fn cpus_with_fewer_instructions_compute_the_same_bits() {
    let integers: Vec<u32> = (0..4096u32).map(|i| i.wrapping_mul(0x85eb_ca6b) >> (i % 29)).collect();
    let (x, n) = (bytes_of(&floats()), bytes_of_words(&integers));
    for begin in [flush, || ()] {
        let options = Options { threads: 2, begin, ..Options::default() };
        let run = |adapter: &wgpu::Adapter| {
            let machine = Machine::of(adapter);
            words(&machine.run(&kernel(), 16 * 1024 * EXPRESSIONS.len(), &[&x, &n], [32, 1, 1]))
        };
        let expected = run(&unisono_cpu::adapter(options.clone()));
        for target in ALL {
            let Some(adapter) = target.adapter(options.clone()) else {
                println!("{}: not run here", target.name);
                continue;
            };
            for (at, (own, other)) in run(&adapter).iter().zip(&expected).enumerate() {
                let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
                let (row, text) = (at / 4 / EXPRESSIONS.len(), EXPRESSIONS[at / 4 % EXPRESSIONS.len()]);
                assert!(
                    own == other || is_nan(*own) && is_nan(*other),
                    "{}: {text} of vector {row}, component {}: {own:#x} and not {other:#x}",
                    target.name,
                    at % 4
                );
            }
        }
    }
}

/// A CPU without SSE4.1 rounds by functions, which have to know of the mode as its instructions would.
#[test]
fn subnormal_numbers_are_rounded_as_zeros_if_they_are_zeros() {
    let kernel = format!(
        "{X}@compute @workgroup_size(1) fn main() {{
    out[0] = bits(floor(x[0]));
    out[1] = bits(ceil(x[0]));
    out[2] = vec4<u32>(bitcast<u32>(floor(x[0].y)), bitcast<u32>(ceil(x[0].x)), n[0].x, 0u);
}}"
    );
    let x = bytes_of(&[f32::from_bits(1), -f32::from_bits(1), 1.5, -1.5]);
    let (minus, [one, two]) = (1 << 31, [1.0f32, 2.0].map(f32::to_bits));
    let floors = [0, minus, one, minus | two];
    let ceils = [0, minus, two, minus | one];
    let expected = [floors, ceils, [minus, 0, 7, 0]].concat();
    for target in ALL {
        if let Some(adapter) = target.adapter(Options { threads: 1, begin: flush, ..Options::default() }) {
            let found = Machine::of(&adapter).run(&kernel, 48, &[&x, &bytes_of_words(&[7; 4])], [1, 1, 1]);
            assert_eq!(words(&found), expected, "{}", target.name);
        }
    }
}

#[test]
fn kernels_compile_for_all_cpus() {
    for target in ALL {
        for checked in [true, false] {
            let code = target.compile(&kernel(), checked);
            assert!(code.is_ok_and(|code| code.len() > 1000), "{}", target.name);
        }
    }
}
