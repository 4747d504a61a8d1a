//! Faults that are planted into the text of kernels for GPUs show in the bytes: what compares them would
//! notice.

use unisono_gpu::Device;
use unisono_graph::target::Machine;
use unisono_graph::{Program, Run, Target};
use unisono_testkit::adapters;

use super::reduction::{program, values};
use super::{Case, Form, finished, run_plan};

/// A text of a kernel, and the faulty one in its place.
type Fault = (&'static str, &'static str);

/// Faults of `matmul_tiles.wgsl`: a slab is read as if its fours were in order, a slab is computed twice and
/// the next one not at all, two steps change places, a chunk ends early, the rows of a turn go where those of
/// another one belong, and a row that moves up is not the next one.
const OF_TILES: [Fault; 6] = [
    ("turned(t / LANES, p)", "t / LANES"),
    ("p + SLAB + steps, is_a", "p + steps, is_a"),
    ("step(step(tile, a, b), a + FOURS, b + FOURS)", "step(step(tile, a + FOURS, b + FOURS), a, b)"),
    ("p < own.end; p += SLAB", "p + SLAB < own.end; p += SLAB"),
    ("i + turn % 2u * k", "i + turn / 2u * k"),
    ("rest.c4 = rest.d0;", "rest.c4 = rest.d1;"),
];

/// The same of the turns of a tile with an epilogue: of tiles of 128, in which columns beyond the half of a
/// tile are left out, and of tiles of 32, in which an odd row at the end is.
const OF_LARGE_TURNS: Fault = ("(params.n - j0 + k - 1u) / k", "(params.n - j0) / k");
const OF_SMALL_TURNS: Fault = ("(params.m - i0 + 1u) / 2u", "(params.m - i0) / 2u");

/// Faults of staged reductions: the fours of a row are added in the opposite order, and a row is that of a
/// neighbour (two invocations on, where rows have two chunks).
const OF_ROWS: [Fault; 2] = [
    ("staged[lane * 9u + r]", "staged[lane * 9u + 7u - r]"),
    ("staged[lane * 9u", "staged[(lane ^ 2u) * 9u"),
];

/// Returns whether the outputs stay the same with a fault in every kernel that has its text, on a GPU that so
/// many workgroups keep busy.
fn hides(
    device: &mut Device,
    busy_workgroups: u32,
    program: &Program,
    values: &[Vec<f32>],
    shards: &[usize],
    fault: Fault,
) -> bool {
    let target = Target { machine: Machine::Gpu, busy_workgroups, ..device.target() };
    let mut plan = program.plan(&Run::whole(shards), &target).unwrap();
    let sound = run_plan(device, &plan, values, program.outputs().len());
    // Results that are not written show only where memory holds others.
    let other: Vec<Vec<f32>> = values.iter().map(|values| values.iter().map(|x| 0.5 - x).collect()).collect();
    run_plan(device, &plan, &other, program.outputs().len());
    let mut planted = 0;
    for kernel in &mut plan.kernels {
        planted += usize::from(kernel.wgsl.contains(fault.0));
        kernel.wgsl = kernel.wgsl.replace(fault.0, fault.1);
    }
    assert!(planted > 0, "no kernel has {:?}", fault.0);
    run_plan(device, &plan, values, program.outputs().len()) == sound
}

#[test]
fn faults_in_kernels_for_gpus_show() {
    let form = Form::Pairs { batch: 1, transpose_a: false, transpose_b: true };
    let (m, n, k) = (67, 68, 75);
    let case = Case { m, n, k, form };
    let behind = [m * k, k * n, n, m * n, m].map(values);
    let rows = program(&[3, 300], &[-1]);
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        for fault in OF_TILES {
            let hidden = hides(&mut device, 1, &case.program(), &case.values(), &case.shards(), fault);
            assert!(!hidden, "{fault:?} on {}", adapter.label());
        }
        for (busy, fault) in [(1, OF_LARGE_TURNS), (u32::MAX, OF_SMALL_TURNS)] {
            let hidden = hides(&mut device, busy, &finished(m, n, k, false), &behind, &[1], fault);
            assert!(!hidden, "{fault:?} on {}", adapter.label());
        }
        for fault in OF_ROWS {
            let hidden = hides(&mut device, 1, &rows, &[values(5 * 900)], &[5], fault);
            assert!(!hidden, "{fault:?} on {}", adapter.label());
        }
    }
}
