//! Random models: products, parts put together and taken apart, rows, columns, statistics of a batch and
//! maps, in any order, with their gradients and updates. A GPU's launches, their order and what they share
//! give the bits of the kernels that the CPU runs one by one, and these what the f64 reference gives. On
//! the emulator, a GPU's launches have no fault, and the same bits.

mod grow;
mod model;

use unisono_gpu::Device;
use unisono_graph::ops::Window;
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, Feed, Graph, Layout, Plan, Program, Run, Slot, StateKind, StatePlacement, Tape, Target, Type, Var,
    interpret,
};
use unisono_random::Draws;
use unisono_testkit::emulator::{Choices, emulate, fuses};
use unisono_testkit::{adapters, cpu_like, relative_error, run_plan};

/// The samples of each shard of the models that are written down.
const SHARDS: [usize; 3] = [3, 2, 2];

/// Returns the bits of a step's outputs and new states, on a device that has done nothing before.
fn bits(adapter: &unisono_gpu::Adapter, program: &Program, plan: &Plan, feed: &Feed) -> Vec<Vec<u32>> {
    let mut device = Device::open(adapter).unwrap();
    let mut found = vec![vec![]; program.outputs().len()];
    run_plan(&mut device, program, plan, feed, &mut |transfer, data| {
        if let Slot::Output(index) = Slot::decode(transfer.slot) {
            found[index] = bytemuck::pod_collect_to_vec(data);
        }
    })
    .unwrap();
    let states = 0..program.states().len();
    found.extend(states.map(|index| bytemuck::pod_collect_to_vec(&device.read_state(index).unwrap())));
    found
}

#[test]
fn launches_of_a_gpu_have_the_bits_of_kernels_one_by_one() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("UNISONO_SEED").unwrap_or(0);
    let cases = match std::env::var_os("UNISONO_LONG") {
        Some(_) => number("UNISONO_CASES").unwrap_or(150),
        None => 4,
    };
    let mut compared = 0;
    let mut device = Device::open(&adapters().remove(0)).unwrap();
    let (fused, cpu) = (fuses(&mut device).unwrap(), cpu_like(&mut device));
    drop(device);
    for seed in first..first + cases {
        let (graph, feed, is_mixed) = model::model(seed);
        let whole = Run::whole(&feed.frame.shards);
        let placement = if seed % 2 == 0 { StatePlacement::ByUpdate } else { StatePlacement::Apart };
        let program = Program::compile_placed(&graph, Layout::default(), placement).unwrap();
        let adapter = adapters().remove(0);
        let own = Device::open(&adapter).unwrap().target();
        let gpu = |busy_workgroups| Target {
            machine: Machine::Gpu,
            busy_workgroups,
            own_quotients: false,
            ..own.clone()
        };
        let cpu_target = Device::open(&cpu).unwrap().target();
        let expected = bits(&cpu, &program, &program.plan(&whole, &cpu_target).unwrap(), &feed);
        assert!(expected.iter().flatten().any(|bits| f32::from_bits(*bits) != 0.0));
        let reference = interpret(&graph, &feed);
        let outputs = program.outputs().iter().map(|output| &reference.outputs[&output.name]);
        let states = 0..program.states().len();
        let new = states.map(|state| reference.updates.get(&state).unwrap_or(&feed.states[state]));
        let reference: Vec<&Array> = outputs.chain(new).collect();
        if reference.iter().any(|array| array.data.iter().any(|x| x.is_nan() || x.abs() > 1e6)) {
            // Numbers that grow out of all bounds say nothing.
            continue;
        }
        for (at, (found, array)) in expected.iter().zip(reference).enumerate().filter(|_| !is_mixed) {
            let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
            // What is 0 but for roundings differs by nothing else.
            let is_some = array.data.iter().any(|x| x.abs() > 1e-5);
            let error = if is_some { relative_error(&found, array) } else { 0.0 };
            assert!(error < 1e-3, "seed {seed}, result {at} beside the reference: {error:e}");
        }
        let small = Target { max_binding_bytes: 64 << 10, max_workgroups: 40, ..gpu(1) };
        for target in [gpu(1), gpu(64), small.clone()] {
            let plan = match program.plan(&whole, &target) {
                Ok(plan) => plan,
                // A device may be too small for a model.
                Err(_) if target == small => continue,
                Err(error) => panic!("seed {seed}, {target:?}: {error}"),
            };
            let found = bits(&adapter, &program, &plan, &feed);
            let names = program.outputs().iter().map(|output| &output.name);
            let names = names.chain(program.states().iter().map(|state| &state.name));
            let wrong: Vec<&String> =
                names.zip(found.iter().zip(&expected)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
            assert!(wrong.is_empty(), "seed {seed}, {target:?}: {wrong:?}");
        }
        // The CPU computes kernels of its own, and those of GPUs.
        let target = Target { machine: Machine::Gpu, busy_workgroups: 1, ..cpu_target };
        let found = bits(&cpu, &program, &program.plan(&whole, &target).unwrap(), &feed);
        assert!(found == expected, "seed {seed} on the CPU, {target:?}");
        let plan = program.plan(&whole, &gpu(1)).unwrap();
        let found = emulate(&program, &plan, &feed, Choices { fused, otherwise: true });
        assert!(found.faults.is_empty(), "seed {seed}: {:#?}", found.faults);
        let outputs = program.outputs().iter().map(|output| &found.ran.outputs[&output.name]);
        let found = outputs.chain(program.states().iter().map(|state| &found.ran.states[&state.name]));
        for (at, (found, expected)) in found.zip(&expected).enumerate() {
            let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
            assert!(found == *expected, "seed {seed}, result {at} on the emulator");
        }
        compared += 1;
    }
    assert!(2 * compared > cases, "{compared} of {cases} models are compared");
}

/// All samples of a product are one matrix, which may have more tiles than a grid has workgroups.
#[test]
fn a_product_with_more_tiles_than_a_grid_has_workgroups_is_several_launches() {
    let tape = Tape::new();
    let image = tape.input("image", Type::sample(&[2, 12, 12]));
    let rows = tape.input("rows", Type::sample(&[128, 8]));
    let filters = tape.state("filters", &[3, 2, 3, 3], StateKind::Parameter);
    let weight = tape.state("weight", &[20, 8], StateKind::Parameter);
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let pixels = image.conv2d(&filters, &window, 1);
    let product = rows.matmul_t(&weight).tanh();
    let loss = (pixels.square().sum_all() + product.square().sum_all()).sum_shards();
    for (name, gradient) in ["df", "dw"].iter().zip(tape.gradients(&loss, &[filters, weight])) {
        tape.output(name, &gradient);
    }
    tape.output("pixels", &pixels);
    tape.output("product", &product);
    let graph = tape.finish().unwrap();
    let feed = model::feed(&graph, &mut Draws::of(0, "structures", "tiles", 0, 0), &SHARDS);
    let program = Program::compile(&graph).unwrap();
    let adapter = adapters().remove(0);
    let whole = Run::whole(&SHARDS);
    let own = Device::open(&adapter).unwrap().target();
    let plan = |max_workgroups| {
        let target = Target { machine: Machine::Gpu, max_workgroups, ..own.clone() };
        program.plan(&whole, &target).unwrap()
    };
    let (one, several) = (plan(own.max_workgroups), plan(10));
    assert!(several.launches() > one.launches());
    assert!(bits(&adapter, &program, &several, &feed) == bits(&adapter, &program, &one, &feed));
}

/// A step on one machine or the other is the same, and what the f64 reference gives.
fn same_on_all_machines(graph: &Graph, shards: &[usize], small: impl Fn(Target) -> Target) {
    let feed = model::feed(graph, &mut Draws::of(1, "structures", "written", 0, 0), shards);
    let program = Program::compile_placed(graph, Layout::default(), StatePlacement::ByUpdate).unwrap();
    let adapter = adapters().remove(0);
    let own = Device::open(&adapter).unwrap().target();
    let gpu = Target { machine: Machine::Gpu, busy_workgroups: 1, ..own };
    let cpu = cpu_like(&mut Device::open(&adapter).unwrap());
    let cpu_target = Device::open(&cpu).unwrap().target();
    let found = [(&cpu, cpu_target), (&adapter, gpu.clone()), (&adapter, small(gpu))]
        .map(|(on, target)| bits(on, &program, &program.plan(&Run::whole(shards), &target).unwrap(), &feed));
    assert!(found[0] == found[1] && found[0] == found[2]);
    let reference = interpret(graph, &feed);
    let outputs = program.outputs().iter().map(|output| &reference.outputs[&output.name]);
    let new = (0..program.states().len()).map(|state| &reference.updates[&state]);
    for (at, (found, array)) in found[0].iter().zip(outputs.chain(new)).enumerate() {
        let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
        let error = relative_error(&found, array);
        assert!(error < 1e-5, "result {at} beside the reference: {error:e}");
    }
}

/// The gradients of two parameters are one sum over samples, under other axes.
#[test]
fn one_sum_can_be_the_gradient_of_two_parameters() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[2, 4]));
    let states = [("b", vec![4]), ("k", vec![1, 4]), ("all", vec![2, 4]), ("flat", vec![8])];
    let [b, k, all, flat] = states.map(|(name, dims)| tape.state(name, &dims, StateKind::Parameter));
    let y = (x + &b + &k + &all + flat.reshape(&[2, 4])).tanh();
    let states = [b, k, all, flat];
    let gradients = tape.gradients(&y.square().sum_all().sum_shards(), &states);
    for (state, gradient) in states.iter().zip(gradients) {
        tape.update(state, &(state - &(gradient * 0.5)));
    }
    same_on_all_machines(&tape.finish().unwrap(), &SHARDS, |gpu| gpu);
}

/// One launch that updates several parameters does not go on behind the end of what these share.
#[test]
fn updates_of_several_parameters_share_a_value() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[8]));
    let mask = tape.input("mask", Type::global(&[8]));
    let states: Vec<Var> =
        (0..3).map(|at| tape.state(&format!("w{at}"), &[8], StateKind::Parameter)).collect();
    let y = states.iter().fold(x, |y, w| (y * w).tanh() + w);
    let loss = y.square().sum_all().sum_shards();
    for (at, (w, gradient)) in states.iter().zip(tape.gradients(&loss, &states)).enumerate() {
        let [m, v] = ["m", "v"].map(|of| tape.state(&format!("{of}{at}"), &[8], StateKind::Optimizer));
        let gradient = gradient * &mask;
        let (first, second) = (&m * 0.9 + &gradient, &v * 0.9 + gradient.square());
        tape.update(&m, &first);
        tape.update(&v, &second);
        tape.update(w, &(w - &(first / (second.square() + 1.0).sqrt())));
    }
    same_on_all_machines(&tape.finish().unwrap(), &SHARDS, |gpu| gpu);
}

/// Where a binding has no room for all rows of a product, its last rows can be few.
#[test]
fn the_last_rows_of_a_long_product_have_all_of_its_chunks() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[2048]));
    let w = tape.state("w", &[64, 2048], StateKind::Parameter);
    tape.output("y", &x.matmul_t(&w));
    tape.update(&w, &(&w * 1.0));
    same_on_all_machines(&tape.finish().unwrap(), &[129], |gpu| Target { max_binding_bytes: 1 << 20, ..gpu });
}
