//! Attention reads queries, keys and values where they lie in a matrix of all heads, and writes its results
//! and their gradients there. They are those of the f64 reference, on every adapter, and a GPU's kernels have
//! the bits of a software adapter's.

use unisono_gpu::Device;
use unisono_graph::ops::Attention;
use unisono_graph::target::Machine;
use unisono_graph::{Array, Feed, Frame, Graph, Program, Run, StateKind, Tape, Target, Type, interpret};
use unisono_random::Draws;
use unisono_testkit::{adapters, relative_error, run_for};

const SHARDS: [usize; 3] = [2, 1, 1];

/// Returns self-attention of `[B, places, width]` with its projections and the gradients of both weights.
fn model(places: usize, heads: usize, d: usize) -> Graph {
    let (tape, width) = (Tape::new(), heads * d);
    let x = tape.input("x", Type::sample(&[places, width]));
    let w = tape.state("w", &[3 * width, width], StateKind::Parameter);
    let b = tape.state("b", &[3 * width], StateKind::Parameter);
    let out = tape.state("out", &[width, width], StateKind::Parameter);
    let all = x.matmul_t(&w) + &b;
    let [q, k, v] = [0, 1, 2]
        .map(|i| all.slice(-1, i * width..(i + 1) * width).reshape(&[places, heads, d]).permute(&[1, 0, 2]));
    let found = tape.apply(Attention { causal: true, scale: 0.5 }, &[&q, &k, &v]);
    let y = found.permute(&[1, 0, 2]).reshape(&[places, width]).matmul_t(&out);
    let weights = [w, b, out];
    let loss = y.square().sum_all().sum_shards();
    for (name, gradient) in ["dw", "db", "dout"].iter().zip(tape.gradients(&loss, &weights)) {
        tape.output(name, &gradient);
    }
    tape.output("y", &y);
    tape.finish().unwrap()
}

#[test]
fn heads_lie_where_products_read_and_write_them() {
    for (places, heads, d) in [(5, 2, 4), (40, 3, 8), (33, 1, 36), (7, 2, 3)] {
        let graph = model(places, heads, d);
        let mut draws = Draws::of(17, "heads", "model", places as u32, 0);
        let mut array = |dims: Vec<usize>| Array::generate(&dims, |_| f64::from(draws.range(-0.5, 0.5)));
        let x = array([vec![SHARDS.iter().sum()], graph.inputs[0].ty.dims.clone()].concat());
        let states = graph.states.iter().map(|state| array(state.ty.dims.clone())).collect();
        let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs: vec![x], states };
        let expected = interpret(&graph, &feed).outputs;
        let program = Program::compile(&graph).unwrap();
        let copies = program.describe().lines().filter(|line| line.contains("copy")).count();
        assert_eq!(copies, 0, "{}", program.describe());
        for adapter in adapters() {
            let own = Device::open(&adapter).unwrap().target();
            let gpu = Target { machine: Machine::Gpu, subgroup: 0, pairs: false, ..own.clone() };
            let plan = program.plan(&Run::whole(&SHARDS), &gpu).unwrap();
            let gradients = plan.kernels.iter().filter(|kernel| kernel.name.starts_with("attention_"));
            let names: Vec<&str> = gradients.map(|kernel| kernel.name.as_str()).collect();
            assert_eq!(names, ["attention_gradients"], "one launch computes all of them");
            let [first, second] = [own, gpu].map(|target| {
                run_for(&mut Device::open(&adapter).unwrap(), &target, &program, &feed).unwrap()
            });
            for (name, expected) in &expected {
                let error = relative_error(&first.outputs[name], expected);
                assert!(error < 1e-5, "{name}, {places} x {heads} x {d} on {}: {error:e}", adapter.label());
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&first.outputs[name]), bits(&second.outputs[name]), "{name}");
            }
        }
    }
}
