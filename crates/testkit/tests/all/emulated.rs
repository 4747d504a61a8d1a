//! The kernels of GPUs on the emulator: no invocation reads what another one writes without a barrier
//! between, every access lies inside its memory, and the bits are the same whatever WGSL leaves to a device.
//! A barrier that is taken out shows as a fault.

use std::collections::BTreeSet;

use unisono_gpu::Device;
use unisono_graph::ops::{Attention, REGISTRY, Window};
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, DType, Feed, Frame, Graph, Layout, Plan, Program, Run, StateKind, StatePlacement, Tape, Target,
    Type, Var,
};
use unisono_random::Draws;
use unisono_testkit::emulator::{Choices, Emulated, emulate, fuses};
use unisono_testkit::{Ran, adapters, plan_for, prepare, run_for};

/// What a device may choose, with either kind of `fma`.
const DEVICES: [[Choices; 2]; 2] = [
    [Choices { fused: false, otherwise: false }, Choices { fused: false, otherwise: true }],
    [Choices { fused: true, otherwise: false }, Choices { fused: true, otherwise: true }],
];

/// A training step with values.
struct Step {
    program: Program,
    feed: Feed,
}

impl Step {
    fn new(graph: &Graph, shards: &[usize]) -> Self {
        let frame = Frame { shards: shards.to_vec() };
        let mut draws = Draws::of(0, "emulated", "feed", 0, 0);
        let mut array = |ty: &Type| {
            Array::generate(&frame.dims(ty), |_| match ty.dtype {
                DType::F32 => f64::from(draws.range(-1.0, 1.0)),
                _ => f64::from(draws.below(5)),
            })
        };
        let inputs = graph.inputs.iter().map(|input| array(&input.ty)).collect();
        let states = graph.states.iter().map(|state| array(&state.ty)).collect();
        let program = Program::compile_placed(graph, Layout::default(), StatePlacement::ByUpdate).unwrap();
        Self { program, feed: Feed { frame, inputs, states } }
    }

    fn plan(&self, target: &Target) -> Plan {
        self.program.plan(&Run::whole(&self.feed.frame.shards), target).unwrap()
    }

    fn run(&self, plan: &Plan, choices: Choices) -> Emulated {
        emulate(&self.program, plan, &self.feed, choices)
    }
}

/// Returns the step of states under a loss: each goes down its gradient.
fn trained(tape: Tape, loss: &Var, states: &[Var], shards: &[usize]) -> Step {
    for (state, gradient) in states.iter().zip(tape.gradients(&loss.sum_shards(), states)) {
        tape.update(state, &(state - &(gradient * 0.125)));
    }
    tape.output("loss", &loss.sum_shards());
    Step::new(&tape.finish().unwrap(), shards)
}

fn state(tape: &Tape, name: &str, dims: &[usize]) -> Var {
    tape.state(name, dims, StateKind::Parameter)
}

/// A product in a tile that is not full, of several chunks if it is long; the gradient's shards are added in
/// turn.
fn product(inner: usize) -> Step {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[35, inner]));
    let w = state(&tape, "w", &[68, inner]);
    let y = x.matmul_t(&w).tanh();
    tape.output("y", &y);
    trained(tape, &y.square().sum_all(), &[w], &[1, 1])
}

/// Small products, normalization along rows, softmax and an embedding.
fn classifier() -> Step {
    let tape = Tape::new();
    let ids = tape.input("ids", Type::sample(&[5]).of(DType::I32));
    let labels = tape.input("labels", Type::sample(&[5]).of(DType::I32));
    let table = state(&tape, "table", &[7, 40]);
    let (w, b) = (state(&tape, "w", &[36, 40]), state(&tape, "b", &[36]));
    let (scale, shift) = (state(&tape, "scale", &[40]), state(&tape, "shift", &[40]));
    let x = table.embed(&ids);
    let centred = &x - x.sum_keep(&[-1]) / 40.0;
    let normed = &centred * (centred.square().sum_keep(&[-1]) / 40.0 + 1e-5).rsqrt() * &scale + &shift;
    let losses = -(normed.matmul_t(&w) + &b).log_softmax().take(&labels);
    trained(tape, &losses.sum_all(), &[table, w, b, scale, shift], &[3, 2, 2])
}

/// Rows of several slabs of workgroup memory, and sums over many samples.
fn rows() -> Step {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[3, 300]));
    let scale = state(&tape, "scale", &[300]);
    let y = (x * &scale).softmax();
    trained(tape, &(&y * &y * &scale).sum_all(), &[scale], &[30, 40])
}

/// Causal attention over several blocks of keys.
fn attention(places: usize, width: usize) -> Step {
    let tape = Tape::new();
    let [q, k, v] = ["q", "k", "v"].map(|name| tape.input(name, Type::sample(&[1, places, width])));
    let scale = state(&tape, "scale", &[width]);
    let seen =
        tape.apply(Attention { causal: true, scale: 0.3 }, &[&(q * &scale), &(k * &scale), &(v * &scale)]);
    tape.output("seen", &seen);
    trained(tape, &seen.square().sum_all(), &[scale], &[1, 1])
}

/// Convolutions whose windows are read where they lie, and statistics of a batch.
fn picture() -> Step {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[2, 7, 7]));
    let (first, second) = (state(&tape, "first", &[6, 2, 3, 3]), state(&tape, "second", &[18, 6, 3, 3]));
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let y = x.conv2d(&first, &window, 1);
    let mean = y.sum(&[-1, -2]).sum_samples().sum_shards() / 343.0;
    let y = (y - mean.reshape(&[6, 1, 1])).relu().conv2d(&second, &window, 1);
    trained(tape, &y.square().sum_all(), &[first, second], &[3, 2, 2])
}

/// Returns the plans of a GPU that few workgroups keep busy, and of one that needs many.
fn plans(step: &Step) -> [Plan; 2] {
    [1, 64].map(|busy_workgroups| step.plan(&Target { busy_workgroups, ..Target::default() }))
}

fn bits(ran: &Ran) -> Vec<u32> {
    let all = ran.outputs.values().chain(ran.carries.values()).chain(ran.states.values());
    all.flatten().map(|x| x.to_bits()).collect()
}

/// The emulator computes what an adapter computes, although it is another device.
#[test]
fn every_op_has_no_fault_and_an_adapters_bits() {
    let mut device = Device::open(&adapters().remove(0)).unwrap();
    let choices = Choices { fused: fuses(&mut device).unwrap(), otherwise: true };
    let storage_buffers = device.target().storage_buffers;
    let gpu = Target { storage_buffers, ..Target::default() };
    let is_long = std::env::var_os("UNISONO_LONG").is_some();
    let cpu = Target { machine: Machine::Cpu, max_workgroup_bytes: 1 << 20, ..gpu.clone() };
    let targets = if is_long { vec![gpu, cpu] } else { vec![gpu] };
    for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
        for (at, case) in (entry.cases)().iter().enumerate() {
            if !is_long && case.types.iter().map(Type::count).sum::<usize>() > 4_000 {
                continue;
            }
            let name = format!("{}/{at} {:?}", entry.name, case.op);
            let prepared = prepare(case, &[3, 2, 1]).unwrap();
            let program = Program::compile(&prepared.graph).unwrap();
            let expected = run_for(&mut device, &targets[0], &program, &prepared.feed).unwrap();
            // Invocations of attention that own nothing read the last row, which another one writes, and
            // throw it away.
            let count = if entry.name.starts_with("attention") { 1 } else { targets.len() };
            for target in &targets[..count] {
                let plan = plan_for(target, &program, &prepared.feed).unwrap();
                let found = emulate(&program, &plan, &prepared.feed, choices);
                assert!(found.faults.is_empty(), "{name}: {:#?}", found.faults);
                assert!(bits(&found.ran) == bits(&expected), "{name}");
            }
        }
    }
}

#[test]
fn training_steps_have_no_fault_and_the_same_bits_on_all_devices() {
    // Places behind the 64th, and heads wider than 64 columns; the longest product has two chunks.
    let steps = [product(1028), classifier(), rows(), attention(66, 68), picture()];
    for (at, step) in steps.iter().enumerate() {
        let [few, many] = plans(step);
        for devices in DEVICES {
            let mut expected = None;
            for (plan, choices) in [(&few, devices[0]), (&few, devices[1]), (&many, devices[1])] {
                let found = step.run(plan, choices);
                assert!(found.faults.is_empty(), "step {at}, {choices:?}: {:#?}", found.faults);
                let found = bits(&found.ran);
                assert!(found.iter().any(|&bits| bits != 0));
                assert!(*expected.get_or_insert(found.clone()) == found, "step {at}, {choices:?}");
            }
        }
    }
}

/// Each barrier of a kernel is taken out on its own. Those between the parts of a kernel of rows stand there
/// for any sizes, and not all are needed for all.
#[test]
fn a_barrier_that_is_missing_is_found() {
    const BARRIER: &str = "workgroupBarrier();";
    let mut seen = BTreeSet::new();
    let (mut found, mut of_rows) = (0, 0);
    for step in [product(36), classifier(), rows(), attention(34, 20), picture()] {
        let [plan, _] = plans(&step);
        for (id, kernel) in plan.kernels.iter().enumerate() {
            if !seen.insert(kernel.wgsl.clone()) {
                continue;
            }
            for (at, _) in kernel.wgsl.match_indices(BARRIER) {
                let mut plan = plan.clone();
                plan.kernels[id].wgsl.replace_range(at..at + BARRIER.len(), "");
                let faults = step.run(&plan, DEVICES[0][0]).faults;
                if faults.iter().any(|fault| fault.contains("no barrier is between")) {
                    found += 1;
                } else {
                    let line = kernel.wgsl[..at].lines().count();
                    assert!(kernel.name.contains("rows["), "line {line} of {}: {}", kernel.name, kernel.wgsl);
                    of_rows += 1;
                }
            }
        }
    }
    assert!(found > 50 && 4 * of_rows < found, "{found} are found, and {of_rows} are not");
}
