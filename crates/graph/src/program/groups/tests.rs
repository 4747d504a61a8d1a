use super::*;
use crate::plan::target::Machine;
use crate::plan::{Access, Command, Plan, Target};
use crate::program::{Layout, Run};
use crate::{Tape, Type};

/// A step on two parameters with a momentum each; `tie` ties them together, and another program may read
/// the first one's momentum.
fn groups(tie: bool, is_read: bool) -> Vec<UpdateGroup> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    let [w, u] = ["w", "u"].map(|name| tape.state(name, &[3, 4], StateKind::Parameter));
    let plain = tape.state("plain", &[3], StateKind::Parameter);
    let [mw, mu] = ["w/m", "u/m"].map(|name| tape.state(name, &[3, 4], StateKind::Optimizer));
    let loss = (x.matmul_t(&w) * x.matmul_t(&u) + &plain).sum(&[-1]).sum_shards();
    let gradients = tape.gradients(&loss, &[w.clone(), u.clone(), plain.clone()]);
    let new = &mw * 0.9 + &gradients[0];
    let other = if tie { &mu * 0.9 + &gradients[1] * &new } else { &mu * 0.9 + &gradients[1] };
    for (state, value) in [(&w, &w - &(&new * 0.1)), (&mw, new), (&u, &u - &(&other * 0.1)), (&mu, other)] {
        tape.update(state, &value);
    }
    tape.update(&plain, &(&plain - &gradients[2]));
    tape.output("loss", &loss);
    let other = Tape::new();
    let y = other.input("y", Type::sample(&[4]));
    let parameters = ["w", "u"].map(|name| other.state(name, &[3, 4], StateKind::Parameter));
    let plain = other.state("plain", &[3], StateKind::Parameter);
    let momentum = other.state("w/m", &[3, 4], StateKind::Optimizer);
    let used = if is_read { &momentum } else { &parameters[0] };
    other.output("y", &(y.matmul_t(used) + plain));
    let compile = |tape: &Tape| Program::compile(&tape.finish().unwrap()).unwrap();
    compile(&tape).update_groups(&[Arc::new(compile(&other))])
}

#[test]
fn a_parameter_and_its_momentum_are_a_group() {
    let group = |shared, kept| UpdateGroup { shared: vec![shared], kept: vec![kept] };
    assert_eq!(groups(false, false), [group(0, 3), group(1, 4)]);
}

#[test]
fn tensors_that_meet_in_an_update_are_one_group() {
    assert_eq!(groups(true, false), [UpdateGroup { shared: vec![0, 1], kept: vec![3, 4] }]);
}
#[test]
fn what_another_program_reads_is_shared() {
    let group = |shared, kept| UpdateGroup { shared, kept };
    assert_eq!(groups(false, true), [group(vec![1], vec![4])]);
    assert_eq!(groups(true, true), [group(vec![0, 1, 3], vec![4])]);
}

/// A step in which two biases have one gradient, and all gradients are scaled by one factor, with two moments
/// each. What the updates share depends on no tensor: the root of the gradient, and the factor, which has as
/// many elements as the last parameter.
fn step(layout: Layout) -> Program {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    let names = ["w", "b", "c", "scale"];
    let shapes: [&[usize]; 4] = [&[3, 4], &[3], &[3], &[]];
    let parameters: Vec<_> =
        names.iter().zip(shapes).map(|(name, dims)| tape.state(name, dims, StateKind::Parameter)).collect();
    let [w, b, c, scale] = &parameters[..] else { unreachable!() };
    let loss = ((x.matmul_t(w) + b + c).tanh() * scale).sum(&[-1]).sum_shards();
    let gradients = tape.gradients(&loss, &parameters);
    let norm = gradients.iter().map(|gradient| gradient.square().sum_all()).reduce(|a, b| a + b).unwrap();
    let factor = (norm.sqrt() + 1.0).sqrt();
    for ((name, parameter), gradient) in names.iter().zip(&parameters).zip(&gradients) {
        let moment = |of: &str| tape.state(&format!("{name}/{of}"), parameter.dims(), StateKind::Optimizer);
        let shared = (gradient.square() + 1.0).sqrt().tanh() / &factor;
        let (m, v) = (moment("m"), moment("v"));
        let (new_m, new_v) = (&m * 0.9 + &shared, &v * 0.99 + shared.square());
        tape.update(&m, &new_m);
        tape.update(&v, &new_v);
        tape.update(parameter, &(parameter - &(new_m / new_v.sqrt())));
    }
    tape.output("loss", &loss);
    Program::compile_with(&tape.finish().unwrap(), layout).unwrap()
}

/// Checks that what commands of the last segment read is there: the command that wrote it in the whole plan
/// is in the part too.
fn reads_what_is_there(whole: &Plan, part: &Plan) {
    let (all, held) = (whole.segments.last().unwrap(), part.segments.last().unwrap());
    let mut left = held.commands.iter().peekable();
    let mut written: BTreeMap<usize, bool> = BTreeMap::new();
    for command in &all.commands {
        let is_held = left.next_if_eq(&command).is_some();
        let Command::Launch(launch) = command else { continue };
        let bindings = || launch.bindings.iter().zip(&whole.kernels[launch.kernel].bindings);
        for (slice, _) in bindings().filter(|(_, access)| is_held && **access == Access::Read) {
            assert!(written.get(&slice.buffer) != Some(&false), "{:?}", whole.kernels[launch.kernel].name);
        }
        let writes = bindings().filter(|(_, access)| **access == Access::ReadWrite);
        written.extend(writes.map(|(slice, _)| (slice.buffer, is_held)));
    }
    assert!(left.next().is_none(), "the part is in the order of the whole");
}

/// Whoever leaves out any one group, or all but one, computes all that the rest needs.
fn check_parts(program: &Program, groups: &[UpdateGroup]) {
    let states = program.states().len();
    for machine in [Machine::Cpu, Machine::Gpu] {
        let target = Target { machine, binding_alignment: 32, storage_buffers: 64, ..Target::default() };
        let whole = program.plan(&Run::whole(&[4; 4]), &target).unwrap();
        for at in 0..groups.len() {
            for is_own in [false, true] {
                let others = groups.iter().enumerate().filter(|(other, _)| (*other == at) != is_own);
                let (mut foreign, mut absent) = (BTreeSet::new(), BTreeSet::new());
                for (_, group) in others {
                    foreign.extend(group.shared.iter().chain(&group.kept));
                    absent.extend(&group.kept);
                }
                assert!(foreign.len() <= states);
                let mut part = whole.clone();
                part.hold_some(&foreign, &absent).unwrap();
                reads_what_is_there(&whole, &part);
            }
        }
    }
}

/// The factor that all updates share is computed apart from them. Those of the two biases share kernels.
#[test]
fn a_value_without_a_tensor_ties_no_updates_together() {
    let kept = |at| [2 * at + 4, 2 * at + 5];
    let group =
        |of: &[usize]| UpdateGroup { shared: of.to_vec(), kept: of.iter().copied().flat_map(kept).collect() };
    let program = step(Layout { states_apart: true, ..Layout::default() });
    let groups = program.update_groups(&[]);
    assert_eq!(groups, [group(&[0]), group(&[1, 2]), group(&[3])]);
    check_parts(&program, &groups);
}

/// Without the layout that keeps them apart, some of the updates need each other's kernels.
#[test]
fn updates_whose_kernels_need_each_other_are_one_group() {
    let program = step(Layout::default());
    let groups = program.update_groups(&[]);
    assert!(groups.len() < 3, "{groups:?}");
    check_parts(&program, &groups);
}

/// A plan that would read what nobody computes is refused, and not run.
#[test]
fn a_device_does_not_leave_out_what_others_need() {
    let program = step(Layout::default());
    let plan = program.plan(&Run::whole(&[4; 4]), &Target::default()).unwrap();
    let refused = (0..4).filter(|at| {
        let absent = BTreeSet::from([2 * at + 4, 2 * at + 5]);
        let foreign = absent.iter().copied().chain([*at]).collect();
        plan.clone().hold_some(&foreign, &absent).is_err()
    });
    assert!(refused.count() > 0);
}
