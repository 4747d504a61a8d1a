//! Compares wide kernels with the same kernels compiled by Cranelift.

mod generate;
mod random;

use unisono_shaders::snippets::{ELEMENTARY, FINITE_BITS, FLUSH, OWN_QUOTIENT, OWN_ROOT};

use super::*;
use crate::compile::{Context, EXTENSIONS, Mode, Program, Source, Target, jit};
use crate::native::{has_fma, vectors};

/// The invocations of a workgroup.
const LANES: u32 = 64;

/// The words of each buffer.
const WORDS: usize = 8_192;

const HEAD: &str = "struct Params { n: u32, width: u32, row: u32, zero: u32, s0: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> b0: array<f32>;
@group(0) @binding(2) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> b2: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> b3: array<f32>;
@group(0) @binding(5) var<storage, read_write> b4: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read> b5: array<u32>;
fn word(at: u32) -> f32 { return b1[at / 4u][at % 4u]; }
fn put(p: ptr<function, f32>, x: f32) { var t = x; *p = t; }
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * params.width;
    if i >= params.n { return; }
";

/// What kernels do for an invocation `i`.
const BODIES: &[&str] = &[
    // Maps of vectors, as activations are.
    "let q = b1[i + params.s0]; let v = b0[i / 16u];
     let x = flush(q.x + v); let y = flush(q.y + v); let z = flush(q.z + v); let w = flush(q.w + v);
     b2[i] = vec4<f32>(flush(exp_(x)), flush(exp_(y)), flush(exp_(z)), flush(exp_(w)));",
    "let q = b1[i]; b2[i] = vec4<f32>(tanh_(q.x), tanh_(q.y), tanh_(q.z), tanh_(q.w));",
    "let q = b1[i]; b2[i] = vec4<f32>(erf_(q.x), erf_(q.y), erf_(q.z), erf_(q.w));",
    "let q = b1[i]; b2[i] = vec4<f32>(sigmoid(q.x), sigmoid(q.y), sigmoid(q.z), sigmoid(q.w));",
    "let q = b1[i]; b2[i] = vec4<f32>(log_(q.x), log_(q.y), log_(q.z), log_(q.w));",
    // Components that are computed differently, in another order, and some of them numbers.
    "let q = b1[i]; b2[i] = vec4<f32>(exp_(q.y), q.x, 1.5, flush(fma(q.z, q.w, q.x)));",
    "let q = b1[i]; let p = q.wzyx; b2[i] = vec4<f32>(exp_(p.x), exp_(p.y), exp_(p.z), exp_(p.w));",
    // Scalars, with quotients, roots, integers and comparisons.
    "let x = b0[i * 2u % 511u + 3u]; let y = word(i + 1u); let k = i32(x * 1e3) >> 2u;
     let r = flush(quotient(exp_(x), root(y))); let m = min(u32(y), i / 7u) + max(i % 10u, 3u);
     b3[i] = select(r, f32(k) + f32(m), (x > y) | (x == 0.0) | !(x <= 1.0));",
    "let k = i32(i) - 9; let l = min(k, -3) ^ (max(k, 2) << 3u); let m = (i & 12u) | (i >> 1u);
     b3[i] = select(sigmoid(b0[i]), abs(bitcast<f32>(l)), (k < l) != (m <= 5u));",
    // A place that may lie outside, as in windows of an image.
    "let x = i % 28u - 1u; let y = i / 28u % 28u + 1u - 1u;
     let v = b0[min(x, 27u) + min(y, 26u) * 28u];
     b3[i] = tanh_(select(-1.0, v, (x < 28u) & (y < 27u)));",
    // Variables, and a loaded value behind a store to its place.
    "var acc = vec4<f32>(); acc.y = b1[i].z; acc = acc + b1[i]; let before = b2[i];
     b2[i] = vec4<f32>(exp_(acc.x), exp_(acc.y), exp_(acc.z), exp_(acc.w));
     let after = b2[i]; b3[i] = flush(before.x - after.w);",
    // A mark if anything is not finite, and a condition that is the same for all.
    "let q = b1[i]; let v = vec4<f32>(exp_(q.x), exp_(q.y), exp_(q.z), exp_(q.w)); b2[i] = v;
     if any(exponents(v) == vec4<u32>(EXPONENT)) { atomicStore(&b4[3], 1u); }",
    "if b5[0] == 77u { return; } b3[i] = exp_(b0[1u + params.s0]);",
    "if b5[1] != 77u { return; } b3[i] = exp_(b0[i]);",
    // All operations that are an instruction of AVX-512, of words that lie one behind another.
    "let x = b0[i]; let y = b0[i + 35u]; let u = bitcast<u32>(x); let v = bitcast<u32>(y);
     let a = (u << 3u) ^ (v >> 30u) ^ bitcast<u32>(bitcast<i32>(u) >> 7u);
     let m = min(u, v) + max(u & 255u, v | 1u) * 3u - a;
     let n = min(bitcast<i32>(u), bitcast<i32>(v)) - max(bitcast<i32>(u) | 5, bitcast<i32>(a));
     let c = u & 3u; let d = v & 3u; let s = bitcast<i32>(c) - 2; let o = bitcast<i32>(d) - 2;
     let t = (c == d) != ((c < d) & (s <= 0)) != (c <= (d ^ 1u)) != (s < o) != (s <= bitcast<i32>(a & 1u));
     let f = select(f32(m), f32(n), t); let g = quotient(y, root(x));
     b3[i] = flush(select(flush(exp_(x) - f), fma(g, x, fma(f, y, f)), (x < y) != (x != g) != (y >= 0.5) != (x <= y)));",
    // Each way in which an fma gives its register on, and constants in each of its places.
    "let q = b1[i]; let p = b1[i + 3u]; let r = fma(q, p, q); let s = fma(r, q, fma(p, p, r));
     let t = fma(s, s, fma(vec4<f32>(0.5), s, p)); let w = fma(t, vec4<f32>(3.0), vec4<f32>(-1.0, 2.0, 0.1, 7.0));
     b2[i] = vec4<f32>(exp_(w.x), exp_(w.y), exp_(w.z), exp_(w.w)); b3[i] = 1.0;",
    // Parts of rows, as slices are: rows of two chunks of numbers, and rows in which chunks begin and end.
    "let j = i / 32u * 40u + i % 32u; b3[j + 1u] = exp_(b0[j + 5u]);",
    "let j = i / 20u * 24u + i % 20u; b3[j] = exp_(b0[j + 5u]);",
    "let j = i / 16u * 20u + i % 16u; let q = b1[j + 3u];
     b2[j] = vec4<f32>(exp_(q.x), exp_(q.y), exp_(q.z), exp_(q.w));",
    "let j = i / 6u * 8u + i % 6u; let q = b1[j]; b2[j + 7u] = vec4<f32>(exp_(q.w), q.x, q.y, 1.0);",
    // Four words that no vector holds, side by side for all invocations, in parts of rows, and apart.
    "let j = 4u * i + 3u; let q = vec4<f32>(b0[j], b0[j + 1u], b0[j + 2u], b0[j + 3u]);
     b2[i] = vec4<f32>(exp_(q.x), exp_(q.y), exp_(q.z), exp_(q.w));",
    "let j = i / 32u * 160u + i % 32u * 4u; let q = vec4<f32>(b0[j], b0[j + 1u], b0[j + 2u], b0[j + 3u]);
     b2[i] = vec4<f32>(exp_(q.x), exp_(q.y), exp_(q.z), exp_(q.w));",
    "let j = i / 6u * 7u + i % 6u; let q = vec4<f32>(b0[j], b0[j + 1u], b0[j + 2u], b0[j + 3u]);
     let p = vec4<f32>(b0[j], b0[j + 1u], b0[j + 2u], b0[j + 4u]) + q;
     b2[i] = vec4<f32>(exp_(p.x), exp_(p.y), exp_(p.z), exp_(p.w));",
    "let q = vec4<f32>(b0[5], b0[6], b0[7], b0[8]) + b1[i]; b2[i] = vec4<f32>(exp_(q.x), q.y, q.z, q.w);",
    // A part of an array of vectors.
    "let q = array<vec2<f32>, 2>(vec2(b0[i], 1.0), vec2(2.0, 3.0))[1]; b3[i] = flush(exp_(b0[i]) * q.x + q.y);",
    // Each lane divides by a different number.
    "b2[i] = vec4<f32>(exp_(b0[i / 5u]), exp_(b0[i / 7u]), exp_(b0[i / 7u]), exp_(b0[i / 5u]));",
    "b2[i] = vec4<f32>(exp_(b0[i % 5u]), exp_(b0[i % 7u + 1u]), exp_(b0[i % 9u]), exp_(b0[i % 5u + 2u]));",
    // The same numbers for all invocations, in parts of rows.
    "let j = i / 32u * 40u + i % 32u; b2[j] = vec4<f32>(1.0, 2.0, 3.0, 4.0); b3[j] = 5.0; b3[i + 4000u] = exp_(b0[j]);",
    // Stores that are written twice happen twice, if another one to their place stands between both.
    "let v = exp_(b0[i]); b3[i] = v; b3[i] = 1.0; b3[i] = v;",
    "let q = b1[i]; let v = vec4<f32>(exp_(q.x), exp_(q.y), exp_(q.z), exp_(q.w)); let w = vec4<f32>(1.0);
     b2[i] = v; b2[i] = w; b2[i] = v;",
    "b3[i] = exp_(b0[i]); let c = b5[0] == 77u; let d = b5[1] == 77u;
     if c { atomicStore(&b4[3], 1u); } if d { atomicStore(&b4[3], 2u); } if c { atomicStore(&b4[3], 1u); }",
    // Invocations that end here and there.
    "if (i * 2654435761u) % 3u == 0u { return; } b3[i] = log_(b0[i]); b2[i / 2u * 2u] = b1[i];",
];

/// Returns what a kernel does that has more values and more loads at a time than a pass may have.
fn crowded() -> String {
    let each = |make: &dyn Fn(usize) -> String| (0..40).map(make).collect::<String>();
    let loads = each(&|k| format!("let x{k} = b0[i + {k}u]; "));
    let values = each(&|k| format!("let y{k} = exp_(x0) * x{k} + x{}; ", (k * 7 + 1) % 40));
    let sum = each(&|k| format!(" + y{} * y{}", 39 - k, k * 3 % 40));
    format!("{loads}{values} b3[i] = flush(0.0{sum});")
}

/// An optimizer's update, which runs on many invocations at once only with AVX-512.
const UPDATE: &str = "let g = b1[i]; let m = b2[i];
     let x = flush(fma(0.9, m.x, 0.1 * g.x)); let y = flush(fma(0.9, m.y, 0.1 * g.y));
     let z = flush(fma(0.9, m.z, 0.1 * g.z)); let w = flush(fma(0.9, m.w, 0.1 * g.w));
     b2[i] = vec4<f32>(flush(quotient(x, root(g.x * g.x))), flush(quotient(y, root(g.y * g.y))),
                       flush(quotient(z, root(g.z * g.z))), flush(quotient(w, root(g.w * g.w))));";

/// Returns a number of any size, sign and kind.
fn number(i: usize) -> f32 {
    let word = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match i % 5 {
        0 => f32::from_bits((word >> 32) as u32),
        1 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-39, f32::MIN_POSITIVE][i % 7],
        _ => ((word >> 40) as f32 / 8_388_608.0 - 1.0) * [1.0, 12.0, 100.0][i % 3],
    }
}

/// The buffers of a launch, as words.
fn buffers(n: u32, width: u32) -> Vec<Vec<u32>> {
    let numbers = |salt: usize| (0..WORDS).map(|i| number(i * 3 + salt).to_bits()).collect::<Vec<_>>();
    let words = vec![77, 77];
    vec![vec![n, width, 0, 0, 5], numbers(1), numbers(2), numbers(3), numbers(4), vec![0; 8], words]
}

fn bounds(buffers: &mut [Vec<u32>]) -> Vec<Bound> {
    let bound =
        |words: &mut Vec<u32>| Bound { start: words.as_mut_ptr().cast(), bytes: 4 * words.len() as u64 };
    buffers.iter_mut().map(bound).collect()
}

fn source(body: &str) -> Source {
    let parts = [ELEMENTARY, FLUSH, OWN_QUOTIENT, OWN_ROOT, FINITE_BITS].map(|part| part.text());
    Source::parse(&format!("{}{HEAD}{body} }}", parts.concat()), EXTENSIONS).unwrap()
}

/// Returns what a launch by Cranelift's code leaves in the buffers.
#[expect(unsafe_code, reason = "machine code runs")]
fn compiled(
    source: &Source,
    rounding: Rounding,
    mut all: Vec<Vec<u32>>,
    (lanes, groups): (u32, [u32; 3]),
) -> Vec<Vec<u32>> {
    let program = Program::compile(source, None, Mode { checked: true, rounding }, Target::Host).unwrap();
    assert!(program.as_wide().is_none());
    let bounds = bounds(&mut all);
    unsafe extern "C" fn alone(_: *const std::ffi::c_void) {}
    let [x, y, z] = groups;
    for number in 0..x * y * z {
        let context = Context {
            bindings: bounds.as_ptr(),
            shared: std::ptr::null_mut(),
            wait: alone,
            waiter: std::ptr::null(),
            group: [number % x, number / x % y, number / (x * y)],
            groups,
        };
        // SAFETY: all places of the kernels lie in the buffers, and there are no barriers.
        unsafe { program.run(&context, 0, lanes) };
    }
    all
}

/// Returns an empty module of code for this CPU.
fn code() -> Option<JITModule> {
    Some(jit(Target::Host.isa().unwrap()))
}

/// Returns the vectors of this CPU that there is code for.
fn known(rounding: Rounding) -> Vec<Vectors> {
    Vectors::of_this_cpu().filter(|own| run::code(*own, rounding).is_some()).collect()
}

#[test]
#[expect(unsafe_code, reason = "memory of kernels")]
fn many_invocations_at_once_compute_what_one_after_the_other_do() {
    let is_x86 = cfg!(target_arch = "x86_64") && vectors() >= Vectors::Avx2 && has_fma();
    let mut compared = 0;
    let both = [Rounding::Split, Rounding::Fused];
    let crowded = crowded();
    let bodies = BODIES.iter().copied().chain([UPDATE, &crowded]);
    for (body, rounding) in bodies.flat_map(|body| both.map(|rounding| (body, rounding))) {
        let source = source(body);
        for (n, groups) in [(1, [1, 1, 1]), (64, [1, 1, 1]), (500, [3, 3, 1]), (1_000, [16, 1, 1])] {
            let first = buffers(n, groups[0] * LANES);
            let expected = compiled(&source, rounding, first, (LANES, groups));
            for vectors in known(rounding) {
                let wide = Wide::new(&source.module, &source.info, 0, (vectors, rounding), &code);
                if body == UPDATE && vectors < Vectors::Avx512 {
                    assert!(wide.is_none());
                    continue;
                }
                let wide = wide.expect(body);
                // At once, and cut into pieces.
                let all = u64::from(groups[0] * groups[1]);
                for half in [all, all / 2] {
                    let mut own = buffers(n, groups[0] * LANES);
                    let bounds = bounds(&mut own);
                    // SAFETY: as above.
                    [0..half, half..all].into_iter().for_each(|piece| unsafe {
                        wide.run_groups(bounds.as_ptr(), groups, piece);
                    });
                    for (at, (own, expected)) in own.iter().zip(&expected).enumerate() {
                        let wrong = own.iter().zip(expected).position(|(own, expected)| own != expected);
                        let case =
                            format!("{body}\n{rounding:?}, {vectors:?}, {n} of {groups:?}, buffer {at}");
                        if let Some(word) = wrong {
                            panic!("{case}[{word}]: {:x}, not {:x}", own[word], expected[word]);
                        }
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(!is_x86 || compared >= BODIES.len() * 16, "{compared} launches");
}

/// An update is one pass over its words, in which values are in registers.
#[test]
fn an_update_is_one_pass() {
    let source = source(UPDATE);
    let graph = read::read(&source.module, &source.info, 0).unwrap();
    let plan = plan::plan(&graph, true);
    let whole = plan.rest.iter().filter(|own| own.width > plan::Width::Block).count();
    assert_eq!((plan.passes.len(), whole, plan.passes[0].streams.len()), (1, 1, 3), "{plan:?}");
    assert!(plan.passes[0].members.iter().all(|member| member.to.is_none()), "{plan:?}");
    assert!(plan::plan(&graph, false).passes.is_empty());
}

#[test]
fn kernels_with_loops_and_cheap_ones_are_compiled() {
    let all = [
        "b3[i] = flush(b0[i] + 1.0);",
        "var x = b0[i]; for (var k = 0u; k < i; k++) { x = exp_(x); } b3[i] = x;",
        "if i % 2u == 0u { b3[i] = exp_(b0[i]); }",
        "b3[i] = exp_(b0[i / (params.s0 + 1u)]);",
        "b3[i] = exp_(b0[i]) % 2.0;",
        "b3[i] = exp_(b0[i]); if i == 3u { return; } b2[i] = b1[i];",
        // Matrices, and pointers into the caller's variables.
        "let q = b1[i]; let m = mat2x2<f32>(q.x, q.y, q.z, q.w); let p = m * m;
         b2[i] = vec4<f32>(exp_(p[0].x), p[0].y, p[1].x, p[1].y);",
        "let q = b1[i]; let p = mat2x2<f32>(q.x, q.y, q.z, q.w) * q.xy; b3[i] = exp_(p.x);",
        "var x = b0[i]; put(&x, 2.0); b3[i] = exp_(x);",
        // The first condition keeps the second from places outside the buffer.
        "if b0[i] > 0.5 { return; } b3[i] = exp_(b0[i]);",
        "let x = b1[i / 3u].y; if b5[0] == 7u { return; } if x > 0.5 { return; } b3[i] = exp_(b0[i]);",
    ];
    for body in all {
        let source = source(body);
        for vectors in known(Rounding::Fused) {
            let wide = Wide::new(&source.module, &source.info, 0, (vectors, Rounding::Fused), &code);
            assert!(wide.is_none(), "{body}");
        }
    }
}

#[test]
fn sums_with_numbers_have_one_number() {
    let mut graph = graph::Graph::default();
    let place = graph.node(graph::Node::Place(0));
    let [three, four] = [3, 4].map(|number| graph.number(number));
    let first = graph.op(graph::Code::AddWord, &[three, place]);
    let second = graph.op(graph::Code::AddWord, &[first, four]);
    assert_eq!(graph.split(second), (place, 7));
    let third = graph.op(graph::Code::SubWord, &[first, three]);
    assert_eq!(third, place);
    let [one, all] = [1, u32::MAX].map(|number| graph.number(number));
    let less = graph.op(graph::Code::SubWord, &[place, one]);
    assert_eq!(graph.op(graph::Code::AddWord, &[place, all]), less);
}

#[test]
fn a_function_of_a_program_is_not_taken_for_one_of_the_kernels() {
    let own = "fn sigmoid(x: f32) -> f32 { return 2.0 * x; } fn exp_(x: f32) -> f32 { return x + 1.0; }";
    let wgsl = format!("{own}{HEAD}b3[i] = sigmoid(exp_(b0[i])); }}");
    let source = Source::parse(&wgsl, EXTENSIONS).unwrap();
    let graph = read::read(&source.module, &source.info, 0).unwrap();
    assert!(!graph.has_functions(), "{graph:?}");
}

/// A quotient or a root is taken for the CPU's instruction only if it is one.
#[test]
fn quotients_and_roots_are_those_of_the_cpu() {
    let hidden = "a / bitcast<f32>(bitcast<u32>(b) ^ params.zero)";
    let divides = [
        (format!("return {hidden};"), true),
        ("return a / b;".to_owned(), true),
        (format!("return 1.0 + {hidden};"), false),
        ("return b / a;".to_owned(), false),
        ("return a / (b * b);".to_owned(), false),
        ("return a / bitcast<f32>(bitcast<u32>(b) ^ 0x80000000u);".to_owned(), false),
        ("return a / bitcast<f32>(bitcast<u32>(b) ^ params.n);".to_owned(), false),
        ("return f32(u32(a / b));".to_owned(), false),
        ("var x = a / b; x = x * 2.0; return x;".to_owned(), false),
        ("let x = a / b; return x * x;".to_owned(), false),
    ];
    for (body, is_own) in divides {
        let own = format!("fn quotient(a: f32, b: f32) -> f32 {{ {body} }}");
        let wgsl = format!("{own}{HEAD}b3[i] = quotient(b0[0], b0[1]); }}");
        let source = Source::parse(&wgsl, EXTENSIONS).unwrap();
        let graph = read::read(&source.module, &source.info, 0).unwrap();
        let [graph::Store::Word { value, .. }] = graph.stores[..] else { panic!("{graph:?}") };
        let is_loaded = |operand: u32, place| match graph.nodes[operand as usize] {
            graph::Node::Load { index, .. } => graph.known(index) == Some(place),
            _ => false,
        };
        let is_direct = match graph.nodes[value as usize] {
            graph::Node::Op(graph::Code::Div, [a, b, _]) => is_loaded(a, 0) && is_loaded(b, 1),
            _ => false,
        };
        assert_eq!(is_direct, is_own, "{body}: {graph:?}");
    }
    let roots = [
        ("return bitcast<f32>(bitcast<u32>(sqrt(x)) ^ params.zero);", true),
        ("return sqrt(x);", true),
        ("return sqrt(abs(x));", false),
        ("return 1.0 / sqrt(x);", false),
    ];
    for (body, is_own) in roots {
        let wgsl = format!("fn root(x: f32) -> f32 {{ {body} }}{HEAD}b3[i] = root(b0[i]); }}");
        let source = Source::parse(&wgsl, EXTENSIONS).unwrap();
        let graph = read::read(&source.module, &source.info, 0);
        assert_eq!(graph.is_some_and(|graph| graph.has_roots()), is_own, "{body}");
    }
}
