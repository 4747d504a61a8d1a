//! Where a device has fewer invocations or less memory a workgroup than WebGPU guarantees, other kernels
//! compute the same bits: smaller tiles, sums apart from each other, attention without workgroup memory.

use unisono_gpu::Device;
use unisono_graph::ops::Attention;
use unisono_graph::target::Machine;
use unisono_graph::{Array, Feed, Frame, Graph, Program, Run, StateKind, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{Needs, adapters, needs, run_for};

/// The samples of each shard.
const SHARDS: [usize; 3] = [3, 2, 1];

/// Returns normalised self-attention of `[B, places, width]` behind a large product, with the gradients of
/// all weights.
fn model(places: usize, heads: usize, width: usize) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[places, width]));
    let weights = ["q", "k", "v", "scale", "shift"].map(|name| {
        let dims: &[usize] = if name.len() == 1 { &[width, width] } else { &[width] };
        tape.state(name, dims, StateKind::Parameter)
    });
    let [wq, wk, wv, scale, shift] = &weights;
    let split = |y: unisono_graph::Var| y.reshape(&[places, heads, width / heads]).permute(&[1, 0, 2]);
    let mean = x.sum_keep(&[-1]) / width as f32;
    let centred = &x - &mean;
    let spread = (centred.square().sum_keep(&[-1]) / width as f32 + 1e-5).sqrt();
    let normed = centred / spread * scale + shift;
    let [q, k, v] = [wq, wk, wv].map(|w| split(normed.matmul_t(w)));
    let found = tape.apply(Attention { causal: true, scale: 0.5 }, &[&q, &k, &v]);
    let y = found.permute(&[1, 0, 2]).reshape(&[places, width]);
    let loss = y.square().sum_all().sum_shards();
    for (index, gradient) in tape.gradients(&loss, &weights).iter().enumerate() {
        tape.output(&format!("gradient {index}"), gradient);
    }
    tape.output("y", &y);
    tape.finish().unwrap()
}

/// What a plan is, and what a run of it gave.
struct Result {
    names: Vec<String>,
    launches: usize,
    /// The most that a workgroup of any of its kernels takes.
    most: Needs,
    bits: Vec<u32>,
}

#[test]
fn kernels_that_fit_a_small_workgroup_compute_the_same_bits() {
    let graph = model(40, 2, 64);
    let program = Program::compile(&graph).unwrap();
    let mut draws = Draws::of(23, "small", "workgroups", 0, 0);
    let mut array = |dims: Vec<usize>| Array::generate(&dims, |_| f64::from(draws.range(-0.5, 0.5)));
    let samples: usize = SHARDS.iter().sum();
    let inputs = graph.inputs.iter().map(|i| array([vec![samples], i.ty.dims.clone()].concat())).collect();
    let states = graph.states.iter().map(|state| array(state.ty.dims.clone())).collect();
    let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states };
    for adapter in adapters() {
        let own = Device::open(&adapter).unwrap().target();
        let gpu = |max_invocations, max_workgroup_bytes| Target {
            machine: Machine::Gpu,
            busy_workgroups: 1,
            max_invocations,
            max_workgroup_bytes,
            ..own.clone()
        };
        let mut results = Vec::new();
        for (invocations, bytes) in [(256, 16 << 10), (256, 16_383), (128, 32 << 10), (64, 9_000), (64, 0)] {
            let target = gpu(invocations, bytes);
            let plan = program.plan(&Run::whole(&SHARDS), &target).unwrap();
            let mut most = Needs::default();
            for kernel in &plan.kernels {
                let own = needs(&kernel.wgsl, &target).unwrap();
                let fits = own.invocations <= invocations.into() && own.workgroup_bytes <= bytes.into();
                assert!(fits, "{}: {own:?} of {invocations} and {bytes}", kernel.name);
                most.invocations = most.invocations.max(own.invocations);
                most.workgroup_bytes = most.workgroup_bytes.max(own.workgroup_bytes);
            }
            let names: Vec<String> = plan.kernels.iter().map(|kernel| kernel.name.clone()).collect();
            let ran = run_for(&mut Device::open(&adapter).unwrap(), &target, &program, &feed).unwrap();
            let bits = |x: &f32| x.to_bits();
            let found: Vec<u32> = ran.outputs.values().flatten().map(bits).collect();
            results.push(Result { names, launches: plan.launches(), most, bits: found });
        }
        let least = &results[0];
        let own = (least.most.invocations, least.most.workgroup_bytes);
        assert_eq!(own, (256, 16 << 10), "the least that WebGPU guarantees is made use of");
        for other in &results[1..] {
            assert_eq!(other.bits, least.bits, "{:?} on {adapter}", other.names);
            assert!(other.launches >= least.launches, "{:?}", other.names);
            assert!(other.most.invocations < own.0, "{:?}", other.names);
        }
    }
}
