use super::*;
use crate::{Graph, Var};

const UNITS: usize = 64;

/// Returns steps of a recurrent layer with the gradient of its weight.
fn recurrent(steps: usize) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[steps, UNITS]));
    let w = tape.state("w", &[UNITS, UNITS], StateKind::Parameter);
    let row = |step: usize| x.slice(1, step..step + 1).reshape(&[UNITS]);
    let last = tape.unrolled(|| (1..steps).fold(row(0), |h, step| (h.matmul_t(&w) + row(step)).tanh()));
    let loss = last.square().sum(&[-1]).sum_shards();
    let gradient = &tape.gradients(&loss, std::slice::from_ref(&w))[0];
    tape.update(&w, &(&w - gradient));
    tape.finish().unwrap()
}

/// Returns a graph that multiplies by a weight eight times. After the fourth product it sorts `sorts` times.
fn interrupted(sorts: usize) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[UNITS]));
    let w = tape.state("w", &[UNITS, UNITS], StateKind::Parameter);
    let four = |x: Var| (0..4).fold(x, |x, _| x.matmul_t(&w));
    let sorted = (0..sorts).fold(four(x), |x, _| -x.sort().0);
    tape.output("y", &four(sorted));
    tape.finish().unwrap()
}

/// Returns how many launches of a plan for 48 samples pack a right operand.
fn packed(graph: &Graph, target: &Target) -> usize {
    let program = Program::compile(graph).unwrap();
    let plan = program.plan(&Run::whole(&[24, 24]), target).unwrap();
    let launches = plan.segments.iter().flat_map(|segment| &segment.commands);
    let is_copy = |command: &&Command| match command {
        Command::Launch(launch) => plan.kernels[launch.kernel].name == "packed_panels",
        _ => false,
    };
    launches.filter(is_copy).count()
}

#[test]
fn steps_of_a_loop_share_one_copy_of_their_weight() {
    let machine = Machine::Cpu;
    let cpu = Target { machine, busy_workgroups: 2, max_workgroup_bytes: 1 << 20, ..Target::default() };
    // One copy for the steps forward, which is transposed, and one for the steps backward.
    assert_eq!(packed(&recurrent(9), &cpu), 2);
    // Each product would copy its weight once. There are two products forward, and one backward.
    assert_eq!(packed(&recurrent(3), &cpu), 0);
    // Now there are six blocks of rows, each of which would copy it.
    assert_eq!(packed(&recurrent(3), &Target { busy_workgroups: 12, ..cpu.clone() }), 2);
    // Much other work between two products ends the copy, so that it takes no memory meanwhile.
    assert_eq!([2, 200].map(|sorts| packed(&interrupted(sorts), &cpu)), [1, 2]);
    let gpu = Target { machine: Machine::Gpu, ..cpu };
    assert_eq!(packed(&recurrent(9), &gpu), 0);
}
