//! The slabs of f16 that kernels for matrix units copy to workgroup memory. No adapter of a machine without a
//! GPU multiplies matrices of 16 x 16, so here a plain loop reads the slabs in their place. The operands are
//! small whole numbers, of which every order has the same sum.

use unisono_gpu::{Arithmetic, Device};
use unisono_graph::target::{Machine, MatrixUnit, UnitWay};
use unisono_graph::{Run, Target};

use super::units::program;
use super::{Case, Form, run_plan};

/// Multiplies in place of `units.wgsl` and what the generator writes into it, by slabs alone.
const BY_SLABS: &str = "
const ROW: u32 = SLAB + 8u;

// A whole number that f16 holds, and zero.
fn number(bits: u32) -> f32 {
    let size = ((bits & 0x7fffu) << 13u) + (112u << 23u);
    return bitcast<f32>(select(size | (bits & 0x8000u) << 16u, 0u, (bits & 0x7fffu) == 0u));
}

fn a_of(row: u32, step: u32) -> f32 {
    let at = row * ROW + step;
    return A_NUMBER;
}

fn b_of(row: u32, step: u32) -> f32 {
    let at = row * ROW + step;
    return B_NUMBER;
}

fn columns(j: u32, q: u32) -> vec4<f32> {
    return vec4<f32>(b_of(j, q), b_of(j + 1u, q), b_of(j + 2u, q), b_of(j + 3u, q));
}

fn multiply(own: Part, i0: u32, j0: u32, sums: ptr<function, Tile>) {
    let a_from = a_first(own, i0);
    let b_from = b_first(own, j0);
    var tile: Tile;
    let i = t / LANES * 4u;
    let j = t % LANES * 4u;
    let k = 4u * LANES;
    var a_read = a_next(own, a_from, own.start);
    var b_read = b_next(own, b_from, own.start);
    for (var p = own.start; p < own.end; p += SLAB) {
        workgroupBarrier();
        a_put(own, p, a_read);
        b_put(own, p, b_read);
        workgroupBarrier();
        a_read = a_next(own, a_from, p + SLAB);
        b_read = b_next(own, b_from, p + SLAB);
        for (var q = 0u; q < min(SLAB, params.k + SLAB); q++) {
            let y = columns(j, q);
            tile.c0 = fma(vec4<f32>(a_of(i, q)), y, tile.c0);
            tile.c1 = fma(vec4<f32>(a_of(i + 1u, q)), y, tile.c1);
            tile.c2 = fma(vec4<f32>(a_of(i + 2u, q)), y, tile.c2);
            tile.c3 = fma(vec4<f32>(a_of(i + 3u, q)), y, tile.c3);
            if SIDE == 8u {
                let w = columns(j + k, q);
                tile.d0 = fma(vec4<f32>(a_of(i, q)), w, tile.d0);
                tile.d1 = fma(vec4<f32>(a_of(i + 1u, q)), w, tile.d1);
                tile.d2 = fma(vec4<f32>(a_of(i + 2u, q)), w, tile.d2);
                tile.d3 = fma(vec4<f32>(a_of(i + 3u, q)), w, tile.d3);
                tile.c4 = fma(vec4<f32>(a_of(i + k, q)), y, tile.c4);
                tile.c5 = fma(vec4<f32>(a_of(i + k + 1u, q)), y, tile.c5);
                tile.c6 = fma(vec4<f32>(a_of(i + k + 2u, q)), y, tile.c6);
                tile.c7 = fma(vec4<f32>(a_of(i + k + 3u, q)), y, tile.c7);
                tile.d4 = fma(vec4<f32>(a_of(i + k, q)), w, tile.d4);
                tile.d5 = fma(vec4<f32>(a_of(i + k + 1u, q)), w, tile.d5);
                tile.d6 = fma(vec4<f32>(a_of(i + k + 2u, q)), w, tile.d6);
                tile.d7 = fma(vec4<f32>(a_of(i + k + 3u, q)), w, tile.d7);
            }
        }
    }
    *sums = tile;
}

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    compute(group);
}
";

/// Returns a kernel that multiplies by its slabs, if the kernel is one for a matrix unit.
fn by_slabs(wgsl: &str) -> Option<String> {
    let (head, rest) = wgsl.split_once("fn multiply(own: Part, i0: u32, j0: u32")?;
    let (_, tail) = rest.split_once("    compute(group);\n}\n")?;
    let number = |x| format!("number({x}_slab[at / 8u][at / 2u % 4u] >> (at % 2u * 16u) & 0xffffu)");
    let plain = BY_SLABS.replace("A_NUMBER", &number("a")).replace("B_NUMBER", &number("b"));
    Some(format!("{head}{plain}{tail}").replace("enable wgpu_cooperative_matrix;\n", ""))
}

/// Returns products whose operands lie in memory in every way, with whole slabs and without.
fn cases() -> Vec<Case> {
    let pairs = |transpose_a, transpose_b| Form::Pairs { batch: 1, transpose_a, transpose_b };
    let both = [false, true];
    let ways = both.into_iter().flat_map(|a| both.map(|b| pairs(a, b)));
    let sizes = [(136, 200, 192), (72, 40, 96), (264, 136, 1160)];
    let mut cases: Vec<Case> = ways.flat_map(|form| sizes.map(|(m, n, k)| Case { m, n, k, form })).collect();
    cases.push(Case { m: 72, n: 136, k: 75, form: pairs(true, false) });
    cases.push(Case { m: 40, n: 264, k: 300, form: Form::Contract { shards: 3 } });
    cases
}

/// Returns whole numbers from -8 to 8 in place of others from -1 to 1.
fn whole(case: &Case) -> [Vec<f32>; 2] {
    case.values().map(|values| values.into_iter().map(|x| (8.0 * x).round()).collect())
}

/// Runs the cases on the CPU, for units of these sizes. `planted(wgsl)` is the text that runs in place of a
/// kernel's. Returns whether a product was wrong, the first of which is the last one that runs, and how many
/// slabs of eights there were.
fn wrong(planted: impl Fn(String) -> String) -> (bool, usize) {
    let cpu = unisono_gpu::Adapter::cpu(Arithmetic::default()).unwrap();
    let options = unisono_gpu::Options::default().with(|own| own.f16 = true);
    let mut device = Device::open_with(&cpu, options).unwrap();
    let mut wide = 0;
    for (size, case) in [8, 16].into_iter().flat_map(|size| cases().into_iter().map(move |case| (size, case)))
    {
        let (program, values) = (program(&case, true), whole(&case));
        let expected = case.sums(&values, |pairs| pairs.iter().map(|(a, b)| a * b).sum());
        // Tiles of all sides.
        for busy_workgroups in [1, 3, u32::MAX] {
            let unit = MatrixUnit { size, lanes: 32, fewest: 32, way: UnitWay::Cooperative };
            let target = Target {
                machine: Machine::Gpu,
                busy_workgroups,
                max_workgroup_bytes: 32 << 10,
                f16: true,
                unit: Some(unit),
                ..device.target()
            };
            let mut plan = program.plan(&Run::whole(&case.shards()), &target).unwrap();
            let mut products = 0;
            for kernel in &mut plan.kernels {
                let Some(plain) = by_slabs(&kernel.wgsl) else { continue };
                products += 1;
                wide += plain.matches("_slab: array<vec4<u32>").count();
                kernel.wgsl = planted(plain);
            }
            assert_eq!(products, 1, "{case:?}");
            if run_plan(&mut device, &plan, &values, 1)[0] != expected {
                return (true, wide);
            }
        }
    }
    (false, wide)
}

#[test]
fn slabs_hold_what_memory_holds() {
    let (wrong, wide) = wrong(|wgsl| wgsl);
    assert!(!wrong);
    assert!(wide > 50, "{wide} slabs of eights");
}

#[test]
fn faults_in_slabs_show() {
    for (text, fault) in [
        // Rows of a pair change places, a step is read twice, a row goes where another belongs, the last slab
        // is read where the one before it is, and what lies past the end is not zero.
        (">> 16u) | (x0_1[0]", "& 0xffffu) | (x0_1[0]"),
        ("(start + 1u)", "(start + 0u)"),
        ("a_slab[to0 + 5u]", "a_slab[to0 + 10u]"),
        ("max(own.end, 8u) - 8u", "max(own.end, 16u) - 16u"),
        ("p + step + 1u < own.end", "true"),
    ] {
        let found = std::cell::Cell::new(0);
        let planted = |wgsl: String| {
            found.set(found.get() + wgsl.matches(text).count());
            wgsl.replace(text, fault)
        };
        let (wrong, _) = wrong(planted);
        assert!(found.get() > 0 && wrong, "{text}: in {} places", found.get());
    }
}
