//! Attention reads queries, keys and values where they lie in a matrix of all heads, and writes its results
//! and their gradients there. They are those of the f64 reference, on every adapter, and the kernels of
//! GPUs and of the CPU have the same bits.

use unisono_gpu::{Adapter, Device};
use unisono_graph::ops::Attention;
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, Feed, Frame, Graph, Precision, Program, Run, StateKind, Tape, Target, Type, Var, interpret,
};
use unisono_random::Draws;
use unisono_testkit::{adapters, cpu_like, relative_error, run_for};

pub(crate) const SHARDS: [usize; 3] = [2, 1, 1];

/// Returns self-attention of `[B, places, width]` with its projections and the gradients of both weights.
fn model(places: usize, heads: usize, d: usize) -> Graph {
    model_in(Precision::F32, places, heads, d)
}

pub(crate) fn model_in(precision: Precision, places: usize, heads: usize, d: usize) -> Graph {
    let (tape, width) = (Tape::with_precision(precision), heads * d);
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

/// Returns a target like this one that is a GPU.
fn gpu(own: &Target) -> Target {
    Target { machine: Machine::Gpu, ..own.clone() }
}

/// Compares what a graph gives with the f64 reference, and the bits of a GPU's kernels with those of the
/// CPU's.
pub(crate) fn is_right_everywhere(name: &str, graph: &Graph, program: &Program) {
    let mut draws = Draws::of(17, "heads", name, graph.nodes.len() as u32, 0);
    let mut array = |dims: Vec<usize>| Array::generate(&dims, |_| f64::from(draws.range(-0.5, 0.5)));
    let samples: usize = SHARDS.iter().sum();
    let inputs = graph.inputs.iter().map(|i| array([vec![samples], i.ty.dims.clone()].concat())).collect();
    let states = graph.states.iter().map(|state| array(state.ty.dims.clone())).collect();
    let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states };
    let expected = interpret(graph, &feed).outputs;
    for adapter in adapters() {
        let own = Device::open(&adapter).unwrap().target();
        let cpu = cpu_like(&mut Device::open(&adapter).unwrap());
        let other = Device::open(&cpu).unwrap().target();
        let on = |adapter: &Adapter, target: &Target| {
            run_for(&mut Device::open(adapter).unwrap(), target, program, &feed).unwrap()
        };
        let (first, second) = (on(&adapter, &gpu(&own)), on(&cpu, &other));
        for (output, expected) in &expected {
            let error = relative_error(&first.outputs[output], expected);
            assert!(error < 1e-5, "{output} of {name} on {}: {error:e}", adapter.label());
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&first.outputs[output]), bits(&second.outputs[output]), "{output} of {name}");
        }
    }
}

#[test]
fn heads_lie_where_products_read_and_write_them() {
    for (places, heads, d) in [(5, 2, 4), (40, 3, 8), (33, 1, 36), (7, 2, 3)] {
        let graph = model(places, heads, d);
        let program = Program::compile(&graph).unwrap();
        let copies = program.describe().lines().filter(|line| line.contains("copy")).count();
        assert_eq!(copies, 0, "{}", program.describe());
        for adapter in adapters() {
            let own = Device::open(&adapter).unwrap().target();
            let plan = program.plan(&Run::whole(&SHARDS), &gpu(&own)).unwrap();
            let gradients = plan.kernels.iter().filter(|kernel| kernel.name.starts_with("attention_"));
            let names: Vec<&str> = gradients.map(|kernel| kernel.name.as_str()).collect();
            assert_eq!(names, ["attention_gradients"], "one launch computes all of them");
        }
        is_right_everywhere(&format!("{places} x {heads} x {d}"), &graph, &program);
    }
}

/// Returns a graph with the gradients of a function of `x`, `[B, dims]`, and two weights.
fn of(dims: &[usize], f: impl Fn(&Tape, &Var, &[Var; 2]) -> Var) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(dims));
    let width = dims[dims.len() - 1];
    let weights = ["a", "b"].map(|name| tape.state(name, &[width, width], StateKind::Parameter));
    let y = f(&tape, &x, &weights);
    let loss = y.tanh().sum_all().sum_shards();
    for (name, gradient) in ["da", "db"].iter().zip(tape.gradients(&loss, &weights)) {
        tape.output(name, &gradient);
    }
    tape.output("y", &y);
    tape.finish().unwrap()
}

/// Operands that are reshapes of other views, such as windows of a picture.
#[test]
fn attention_within_windows_reads_what_its_operands_are_views_of() {
    let (t, heads, d) = (4, 2, 8);
    for (h, w) in [(8, 12), (8, 4)] {
        let graph = of(&[h * w, heads * d], |tape, x, weights| {
            let windows = |x: &Var| {
                x.reshape(&[h / t, t, w / t, t, heads, d]).permute(&[0, 2, 4, 1, 3, 5]).reshape(&[
                    h / t * (w / t) * heads,
                    t * t,
                    d,
                ])
            };
            let [q, k] = [0, 1].map(|i| windows(&x.matmul_t(&weights[i])));
            tape.apply(Attention { causal: false, scale: 0.5 }, &[&q, &k, &windows(x)])
        });
        is_right_everywhere(&format!("windows {h} x {w}"), &graph, &Program::compile(&graph).unwrap());
    }
}

/// Operands, and gradients by the result, that repeat rows or features.
#[test]
fn what_repeats_is_read_as_often_as_it_is_there() {
    let (places, width, times) = (5, 8, 3);
    let attend = |tape: &Tape, q: &Var, k: &Var, v: &Var| {
        tape.apply(Attention { causal: false, scale: 0.5 }, &[q, k, v])
    };
    let graphs = [
        (
            "a sum over features",
            of(&[places, width], |tape, x, [a, b]| {
                attend(tape, &x.matmul_t(a), &x.matmul_t(b), x).sum_keep(&[-1])
            }),
        ),
        (
            "keys in turn",
            of(&[places, width], |tape, x, [a, b]| {
                let tiled = |x: &Var| {
                    x.reshape(&[1, places, width])
                        .expand(x.ty().lead, &[times, places, width])
                        .reshape(&[times * places, width])
                };
                attend(tape, x, &tiled(&x.matmul_t(a)), &tiled(&x.matmul_t(b)))
            }),
        ),
        (
            "each key several times",
            of(&[places, width], |tape, x, [a, b]| {
                let repeated = |x: &Var| {
                    x.reshape(&[places, 1, width])
                        .expand(x.ty().lead, &[places, times, width])
                        .reshape(&[places * times, width])
                };
                attend(tape, x, &repeated(&x.matmul_t(a)), &repeated(&x.matmul_t(b)))
            }),
        ),
        (
            "features",
            of(&[places, width], |tape, x, [a, b]| {
                let same = x.matmul_t(b).slice(-1, 0..1).expand(x.ty().lead, &[places, width]);
                let tiled = x.matmul_t(a).slice(-1, 0..4).reshape(&[places, 1, 4]);
                let tiled = tiled.expand(x.ty().lead, &[places, 2, 4]).reshape(&[places, width]);
                attend(tape, x, &tiled, &same)
            }),
        ),
        (
            "a row",
            of(&[places, width], |tape, x, [a, b]| {
                let row = x.matmul_t(a).slice(1, 2..3).expand(x.ty().lead, &[places, width]);
                attend(tape, &row, &x.matmul_t(b), x)
            }),
        ),
    ];
    for (name, graph) in &graphs {
        is_right_everywhere(name, graph, &Program::compile(graph).unwrap());
    }
}
