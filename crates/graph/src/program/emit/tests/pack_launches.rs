//! Launches side by side, and rows with a softmax and its gradient, as counts of a perceptron's step.

use std::collections::BTreeSet;

use crate::plan::target::Machine;
use crate::plan::{Command, Launch, Plan, Target};
use crate::program::{Layout, Program, Run};
use crate::trace::{StateKind, Tape};
use crate::values::{DType, Type};
use crate::{StatePlacement, Var};

/// Returns a training step of a perceptron that classifies, with momentum.
fn step(widths: &[usize], placement: StatePlacement<'_>) -> Program {
    let tape = Tape::new();
    let mut x = tape.input("x", Type::sample(&[widths[0]]));
    let labels = tape.input("y", Type::sample(&[]).of(DType::I32));
    let mut weights: Vec<Var> = Vec::new();
    for (layer, sizes) in widths.windows(2).enumerate() {
        let (w, b) = (format!("{layer}/w"), format!("{layer}/b"));
        let w = tape.state(&w, &[sizes[1], sizes[0]], StateKind::Parameter);
        let b = tape.state(&b, &sizes[1..], StateKind::Parameter);
        x = x.matmul_t(&w) + &b;
        if layer + 2 < widths.len() {
            x = x.relu();
        }
        weights.extend([w, b]);
    }
    let losses = -x.log_softmax().take(&labels);
    let loss = losses.sum_shards();
    tape.output("losses", &losses);
    for (state, gradient) in weights.iter().zip(tape.gradients(&loss, &weights)) {
        let name = tape.state_name(state).unwrap();
        let moment = tape.state(&format!("{name}/m"), state.dims(), StateKind::Optimizer);
        let new = &moment * 0.9 + &gradient;
        tape.update(&moment, &new);
        tape.update(state, &(state - &(new * tape.constant(0.01))));
    }
    Program::compile_placed(&tape.finish().unwrap(), Layout::default(), placement).unwrap()
}

fn plan(machine: Machine) -> Plan {
    let program = step(&[784, 512, 512, 10], StatePlacement::ByUpdate);
    let target = Target { max_workgroup_bytes: 1 << 20, ..target(machine) };
    program.plan(&Run::whole(&[16; 8]), &target).unwrap()
}

pub(super) fn target(machine: Machine) -> Target {
    Target { machine, busy_workgroups: 256, binding_alignment: 32, storage_buffers: 64, ..Target::default() }
}

fn launches(plan: &Plan) -> impl Iterator<Item = (&str, &Launch)> {
    plan.segments.iter().flat_map(|segment| &segment.commands).filter_map(|command| match command {
        Command::Launch(launch) => Some((&*plan.kernels[launch.kernel].name, launch)),
        _ => None,
    })
}

/// Forward three products and a launch for the softmax, the losses and the gradient of the logits. Backward
/// two products for activations and three for weights, and the sums for biases. Behind these one launch of
/// trees, one check and one of updates.
#[test]
fn a_perceptron_takes_few_launches() {
    let plan = plan(Machine::Gpu);
    let names: Vec<&str> = launches(&plan).map(|(name, _)| name).collect();
    assert!(names.len() <= 13, "{names:#?}");
    let is_softmax = |name: &&&str| name.contains("log") && name.contains("take") && name.contains("eq");
    assert_eq!(names.iter().filter(is_softmax).count(), 1, "{names:#?}");
    // A kernel that no launch has any more would be compiled for nothing.
    assert!(plan.kernels.iter().all(|kernel| names.contains(&&*kernel.name)));
    let alone = self::plan(Machine::Cpu);
    assert!(launches(&alone).all(|(name, _)| !name.contains("beside") && !name.contains("rows")));
}

/// What launches side by side do for each other is in no order, so none of them uses what another one writes.
#[test]
fn launches_side_by_side_have_the_workgroups_of_all_and_write_apart() {
    let plan = plan(Machine::Gpu);
    let beside = launches(&plan).filter(|(name, _)| name.starts_with("beside["));
    let mut found = 0;
    for (name, launch) in beside {
        let wgsl = &plan.kernels[launch.kernel].wgsl;
        let parts = (0..).take_while(|part| wgsl.contains(&format!("fn main_{part}("))).count();
        assert!(parts > 1 && launch.params[..parts].is_sorted(), "{name}: {:?}", launch.params);
        assert_eq!(launch.grid, [launch.params[parts - 1], 1, 1], "{name}");
        for (slice, access) in launch.bindings.iter().zip(&plan.kernels[launch.kernel].bindings) {
            let same = launch.bindings.iter().zip(&plan.kernels[launch.kernel].bindings);
            assert!(same.filter(|(other, _)| other.buffer == slice.buffer).all(|(_, own)| own == access));
        }
        found += 1;
    }
    assert!(found >= 2, "{found} launches with others beside them");
}

/// A device that holds a part of the state leaves out the updates of all other tensors, one by one, and no
/// other launch.
#[test]
fn updates_of_tensors_that_are_apart_can_be_left_out_one_by_one() {
    let program = step(&[784, 512, 512, 10], StatePlacement::Apart);
    let [whole, mut part] =
        [(); 2].map(|()| program.plan(&Run::whole(&[16; 8]), &target(Machine::Gpu)).unwrap());
    assert!(launches(&whole).any(|(name, _)| name.starts_with("beside[")));
    let of = |name: &str| program.states().iter().position(|state| state.name == name).unwrap();
    part.hold_some(&BTreeSet::from([of("0/b"), of("0/b/m")]), &BTreeSet::from([of("0/b/m")])).unwrap();
    assert_eq!(launches(&part).count() + 1, launches(&whole).count());
}
