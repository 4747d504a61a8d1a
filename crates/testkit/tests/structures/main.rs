//! Random models: products, parts put together and taken apart, rows, columns, statistics of a batch and
//! maps, in any order, with their gradients and updates. A GPU's launches, their order and what they share
//! give the bits of the kernels that a software adapter runs one by one, and these what the f64 reference
//! gives.

mod grow;
mod model;

use unisono_gpu::Device;
use unisono_graph::ops::Window;
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, Feed, Frame, Layout, Plan, Program, Run, Slot, StateKind, StatePlacement, Tape, Target, Type,
    interpret,
};
use unisono_random::Draws;
use unisono_testkit::{adapters, relative_error, run_plan};

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

fn plan_lines(plan: &Plan) -> Vec<String> {
    vec![format!("{} launches", plan.launches())]
}

#[test]
fn launches_of_a_gpu_have_the_bits_of_kernels_one_by_one() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("UNISONO_SEED").unwrap_or(0);
    let cases = match std::env::var_os("UNISONO_LONG") {
        Some(_) => number("UNISONO_CASES").unwrap_or(150),
        None => 4,
    };
    for seed in first..first + cases {
        let (graph, feed, is_mixed) = model::model(seed);
        let whole = Run::whole(&feed.frame.shards);
        let placement = if seed % 2 == 0 { StatePlacement::ByUpdate } else { StatePlacement::Apart };
        let program = Program::compile_placed(&graph, Layout::default(), placement).unwrap();
        let adapter = adapters().remove(0);
        let own = Device::open(&adapter).unwrap().target();
        let gpu = |busy_workgroups| Target {
            machine: Machine::Gpu,
            subgroup: 0,
            pairs: false,
            busy_workgroups,
            ..own.clone()
        };
        let alone = Target { machine: Machine::Cpu, ..own.clone() };
        let expected = bits(&adapter, &program, &program.plan(&whole, &alone).unwrap(), &feed);
        assert!(expected.iter().flatten().any(|bits| f32::from_bits(*bits) != 0.0));
        assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()), "seed {seed}");
        if !is_mixed {
            let reference = interpret(&graph, &feed);
            let outputs = program.outputs().iter().map(|output| &reference.outputs[&output.name]);
            let new = (0..program.states().len()).map(|state| &reference.updates[&state]);
            for (at, (found, array)) in expected.iter().zip(outputs.chain(new)).enumerate() {
                let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
                // What is 0 but for roundings differs by nothing else.
                let is_some = array.data.iter().any(|x| x.abs() > 1e-5);
                let error = if is_some { relative_error(&found, array) } else { 0.0 };
                assert!(error < 1e-3, "seed {seed}, result {at} beside the reference: {error:e}");
            }
        }
        for target in [gpu(1), gpu(64)] {
            let found = bits(&adapter, &program, &program.plan(&whole, &target).unwrap(), &feed);
            let names = program.outputs().iter().map(|output| &output.name);
            let names = names.chain(program.states().iter().map(|state| &state.name));
            let wrong: Vec<&String> =
                names.zip(found.iter().zip(&expected)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
            if !wrong.is_empty() && std::env::var_os("UNISONO_SHOW").is_some() {
                for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
                    let d: Vec<(usize, f32, f32)> = a
                        .iter()
                        .zip(b)
                        .enumerate()
                        .filter(|(_, (a, b))| a != b)
                        .map(|(i, (a, b))| (i, f32::from_bits(*a), f32::from_bits(*b)))
                        .collect();
                    if !d.is_empty() {
                        println!("result {at}: {} of {} {:?}", d.len(), a.len(), &d[..d.len().min(8)]);
                    }
                }
                println!("frame {:?}", feed.frame);
                for (i, node) in graph.nodes.iter().enumerate() {
                    println!("%{i} = {} {:?} : {}", graph.describe(i), node.inputs, node.ty);
                }
                println!("{:?}", graph.outputs);
                for step in plan_lines(&program.plan(&whole, &target).unwrap()) {
                    println!("{step}");
                }
            }
            assert!(wrong.is_empty(), "seed {seed}, {} workgroups: {wrong:?}", target.busy_workgroups);
        }
    }
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
    let mut draws = Draws::of(0, "structures", "tiles", 0, 0);
    let samples: usize = SHARDS.iter().sum();
    let mut array = |dims: &[usize]| Array::generate(dims, |_| f64::from(draws.range(-0.7, 0.7)));
    let inputs = graph.inputs.iter().map(|i| array(&[&[samples], &i.ty.dims[..]].concat())).collect();
    let states = graph.states.iter().map(|state| array(&state.ty.dims)).collect();
    let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states };
    let program = Program::compile(&graph).unwrap();
    let adapter = adapters().remove(0);
    let own = Device::open(&adapter).unwrap().target();
    let whole = Run::whole(&SHARDS);
    for machine in [Machine::Cpu, Machine::Gpu] {
        let subgroup = if machine == Machine::Cpu { own.subgroup } else { 0 };
        let plan = |max_workgroups| {
            let target = Target { machine, subgroup, max_workgroups, ..own.clone() };
            program.plan(&whole, &target).unwrap()
        };
        let (one, several) = (plan(own.max_workgroups), plan(20));
        assert!(several.launches() > one.launches());
        assert!(bits(&adapter, &program, &several, &feed) == bits(&adapter, &program, &one, &feed));
    }
}
