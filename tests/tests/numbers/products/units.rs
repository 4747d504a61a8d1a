//! Products by matrix units: one function, whatever the tile, the shards and the layout of memory are. Units
//! whose order is known give the bytes of a plain loop on the host.

use unisono_gpu::{Adapter, Arithmetic, Backend, Device};
use unisono_graph::half::round_half;
use unisono_graph::ops::{Contract, MatMul};
use unisono_graph::target::{Machine, UnitSums, UnitWay};
use unisono_graph::{Layout, Program, Run, Tape, Target};
use unisono_testkit::{adapters, left_out};

use super::{Case, Form, cases, run, run_plan};

/// A text of a kernel, and the faulty one in its place.
type Fault = (&'static str, &'static str);

/// Faults of `units.wgsl`: a slab is read twice and the next one not at all, a chunk ends early, the two
/// blocks of a slab change places.
const OF_UNITS: [Fault; 3] = [
    ("a_next(own, a_from, p + SLAB)", "a_next(own, a_from, p)"),
    ("p < own.end; p += SLAB", "p + SLAB < own.end; p += SLAB"),
    ("u + step / 4u]", "u + (step / 4u ^ 2u)]"),
];

/// Faults of cooperative matrices: a product is added twice, and rows of a tile go where others belong.
const OF_COOPERATIVE: [Fault; 2] = [
    (
        "coopMultiplyAdd(a_0_0, b_0_0, sum_0_0)",
        "coopMultiplyAdd(a_0_0, b_0_0, coopMultiplyAdd(a_0_0, b_0_0, sum_0_0))",
    ),
    ("if first_row + 0u == s", "if first_row + 1u == s"),
];

/// Faults of sums in turn: products are added by a tree, and a sum is carried over twice.
const IN_TURN: [Fault; 2] = [
    ("((first.x + first.y) + first.z) + first.w", "(first.x + first.y) + (first.z + first.w)"),
    ("return sums + next", "return sums + sums + next"),
];

/// Faults of aligned sums: the exponent of the sum so far does not count, and a result is rounded to the
/// nearest number instead of cut off.
const ALIGNED: [Fault; 2] = [("max(own, -100)", "-100"), ("(8u - min(countLeadingZeros(size), 8u))", "0u")];

/// Returns the adapters with their units in use: the CPU with the units that are known, and the adapters
/// whose drivers list cooperative matrices.
fn units() -> Vec<Adapter> {
    let hopper = Adapter::cpu(Arithmetic { unit_sums: UnitSums::Aligned, ..Arithmetic::default() });
    let found: Vec<Adapter> =
        adapters().into_iter().chain(hopper).filter_map(|adapter| adapter.with_matrix_units().ok()).collect();
    if found.iter().all(|adapter| adapter.backend == Backend::Cpu) {
        left_out("cooperative matrices are not run: no adapter lists them (lavapipe of Mesa 26.1 does)");
    }
    found
}

/// Returns how an adapter's unit adds, if that is known.
fn sums(adapter: &Adapter) -> Option<UnitSums> {
    match adapter.unit.map(|unit| unit.way) {
        Some(UnitWay::Plain(sums)) => Some(sums),
        Some(UnitWay::Cooperative) if adapter.name.contains("llvmpipe") => Some(UnitSums::InTurn),
        Some(UnitWay::Cooperative) if adapter.name.contains("H200") => Some(UnitSums::Aligned),
        _ => None,
    }
}

/// Returns targets that make a plan take tiles of all sides.
fn targets(device: &Device) -> Vec<Target> {
    let own = device.target();
    let gpu = |busy_workgroups| Target { machine: Machine::Gpu, busy_workgroups, ..own.clone() };
    vec![own.clone(), gpu(1), gpu(3), gpu(u32::MAX)]
}

/// Returns the program of a case whose operands are rounded to numbers that f16 holds.
pub(super) fn program(case: &Case, f16: bool) -> Program {
    let tape = Tape::new();
    let [a, b] = case.types();
    let [a, b] = [("a", a), ("b", b)].map(|(name, ty)| tape.input(name, ty).round_half());
    let y = match case.form {
        Form::Pairs { transpose_a, transpose_b, .. } => {
            tape.apply(MatMul { transpose_a, transpose_b }, &[&a, &b])
        }
        Form::Rows { transpose_b } => tape.apply(MatMul { transpose_a: false, transpose_b }, &[&a, &b]),
        Form::Contract { .. } => tape.apply(Contract, &[&a, &b]).sum_shards(),
    };
    tape.output("y", &y);
    Program::compile_with(&tape.finish().unwrap(), Layout { f16, ..Layout::default() }).unwrap()
}

/// Adds a chunk's products as a unit does. lavapipe's (Mesa 26.1) adds those of eight steps one by one, and
/// the sum so far to that. Hopper's adds those of 16 steps and the sum so far exactly, without what lies more
/// than 25 bits below the largest exponent, and cuts the result off.
fn chunk(sums: UnitSums, pairs: &[(f32, f32)]) -> f32 {
    let in_turn = |sum: f32, block: &[(f32, f32)]| sum + block.iter().fold(0.0, |sum, (a, b)| sum + a * b);
    match sums {
        UnitSums::InTurn => pairs.chunks(8).fold(0.0, in_turn),
        UnitSums::Aligned => pairs.chunks(16).fold(0.0, aligned),
    }
}

fn aligned(sum: f32, block: &[(f32, f32)]) -> f32 {
    let exponent = |x: f32| x.abs().log2().floor() as i32;
    let of_half = |x: f32| exponent(x).max(-14);
    let products = block.iter().filter(|(a, b)| a * b != 0.0);
    let own = (sum != 0.0).then(|| exponent(sum));
    let Some(largest) = products.clone().map(|(a, b)| of_half(*a) + of_half(*b)).chain(own).max() else {
        return 0.0;
    };
    let unit = 2f64.powi(largest - 25);
    let terms = products.map(|(a, b)| f64::from(a * b)).chain([f64::from(sum)]);
    let exact: f64 = terms.map(|term| (term / unit).trunc()).sum::<f64>() * unit;
    // To 24 bits, towards 0.
    let near = exact as f32;
    if f64::from(near).abs() > exact.abs() { f32::from_bits(near.to_bits() - 1) } else { near }
}

fn halves(case: &Case) -> [Vec<f32>; 2] {
    case.values().map(|values| values.into_iter().map(round_half).collect())
}

#[test]
fn products_by_matrix_units_are_one_function() {
    for adapter in units() {
        let mut device = Device::open(&adapter).unwrap();
        let mut sides = [0; 3];
        let mut copied = [0; 2];
        for (number, case) in cases().iter().enumerate() {
            let values = halves(case);
            let expected =
                sums(&adapter).map(|sums| case.sums(&values, |pairs: &[(f32, f32)]| chunk(sums, pairs)));
            let program = program(case, number % 3 > 0);
            let mut first = None;
            for target in targets(&device) {
                let what = format!("{case:?} on {} with {target:?}", adapter.label());
                let (mut outputs, kernels) = run(&mut device, &target, &program, &values, &case.shards());
                let y = outputs.remove(0);
                for (side, count) in [32, 64, 128].into_iter().zip(&mut sides) {
                    let text = format!("const TILE: u32 = {side}u");
                    let by_unit = |kernel: &&String| kernel.contains(&text) && kernel.contains("// units:");
                    *count += kernels.iter().filter(by_unit).count();
                }
                // Operands stored as f16, with the steps of a row or the rows of a step side by side.
                let ways = [
                    "fn a_next(own: Part, first: AFirst, p: u32) -> ANext {\n    let eight",
                    "fn b_first(own: Part, i0: u32) -> BFirst {\n    let step",
                ];
                for (text, count) in ways.iter().zip(&mut copied) {
                    *count += kernels.iter().filter(|kernel| kernel.contains(text)).count();
                }
                if let Some(expected) = &expected {
                    let other = y.iter().zip(expected).filter(|(y, expected)| y != expected).count();
                    assert_eq!((other, y.len()), (0, expected.len()), "{what}");
                }
                assert_eq!(first.get_or_insert_with(|| y.clone()), &y, "{what}");
            }
        }
        assert!(sides.iter().all(|count| *count >= 4), "{sides:?} kernels on {}", adapter.label());
        let is_plain = adapter.backend == Backend::Cpu;
        assert!(is_plain || copied.iter().all(|count| *count >= 4), "{copied:?} on {}", adapter.label());
    }
}

#[test]
fn faults_in_kernels_of_matrix_units_show() {
    let form = Form::Pairs { batch: 1, transpose_a: false, transpose_b: true };
    let case = Case { m: 67, n: 68, k: 75, form };
    let (program, values) = (program(&case, false), halves(&case));
    for adapter in units() {
        let mut device = Device::open(&adapter).unwrap();
        let own = match adapter.unit.map(|unit| unit.way) {
            Some(UnitWay::Plain(UnitSums::InTurn)) => IN_TURN,
            Some(UnitWay::Plain(UnitSums::Aligned)) => ALIGNED,
            _ => OF_COOPERATIVE,
        };
        for fault in OF_UNITS.into_iter().chain(own) {
            for busy_workgroups in [1, u32::MAX] {
                let target = Target { machine: Machine::Gpu, busy_workgroups, ..device.target() };
                let mut plan = program.plan(&Run::whole(&case.shards()), &target).unwrap();
                let sound = run_plan(&mut device, &plan, &values, 1);
                let planted = plan.kernels.iter_mut().find(|kernel| kernel.wgsl.contains(fault.0));
                let kernel = planted.unwrap_or_else(|| panic!("no kernel has {:?}", fault.0));
                kernel.wgsl = kernel.wgsl.replace(fault.0, fault.1);
                let faulty = run_plan(&mut device, &plan, &values, 1);
                // The blocks of a slab are one of a unit of 16, whose order is its own.
                let is_within =
                    fault.0.starts_with("u + step") && adapter.unit.is_some_and(|unit| unit.size == 16);
                assert!(faulty != sound || is_within, "{fault:?} on {}", adapter.label());
            }
        }
    }
}
