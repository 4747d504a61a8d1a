//! Sums over rows of computed elements. The length of a row, the number of maps and the device choose the
//! kernel, not the bits.

use unisono_gpu::{Adapter, Device};
use unisono_graph::{Graph, Program, Run, StateKind, Tape, Target, Type};
use unisono_testkit::{adapters, cpu_like};

use crate::heads::{SHARDS, is_right_everywhere};

/// Returns the sums of rows of `[B, channels, row]` that few and many maps compute, and the gradient of an
/// offset for each channel, which sums over samples as well.
fn model(channels: usize, row: usize) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[channels, row]));
    let offset = tape.state("offset", &[channels, 1], StateKind::Parameter);
    let few = &x * 0.5;
    let many = ((&x + &offset).relu().square() * &x - 0.25).relu();
    tape.output("few", &few.sum(&[-1]));
    tape.output("many", &many.sum(&[-1]));
    let loss = many.square().sum_all().sum_shards();
    tape.gradients(&loss, &[offset]).iter().for_each(|gradient| tape.output("gradient", gradient));
    tape.finish().unwrap()
}

/// Returns whether a kernel for the CPU loads the rows of a sum in a loop.
fn loops_over_rows(adapter: &Adapter, program: &Program) -> bool {
    let target: Target = Device::open(&cpu_like(&mut Device::open(adapter).unwrap())).unwrap().target();
    let plan = program.plan(&Run::whole(&SHARDS), &target).unwrap();
    plan.kernels.iter().any(|kernel| kernel.wgsl.contains("rows[row]"))
}

/// Rows of 28 and more elements are loaded in a loop, and rows of 260 elements have two chunks.
#[test]
fn sums_of_rows_that_maps_compute_have_one_result() {
    for (channels, row) in [(4, 24), (4, 28), (16, 28), (12, 260), (3, 28), (8, 27), (1, 516)] {
        let graph = model(channels, row);
        let program = Program::compile(&graph).unwrap();
        is_right_everywhere(&format!("{channels} x {row}"), &graph, &program);
        let is_long = channels % 4 == 0 && row % 4 == 0 && row > 25;
        let loops = loops_over_rows(&adapters()[0], &program);
        assert_eq!(loops, is_long, "{channels} rows of {row}");
    }
}
