//! Ops of a user's own are known by their types and fields, by the passes and on every adapter.

use std::collections::{BTreeMap, BTreeSet};

use unisono_gpu::Device;
use unisono_graph::{Array, Feed, Frame, Graph, Program, StateKind, Tape, Type, Var, interpret, simplify};
use unisono_random::Draws;
use unisono_testkit::own_ops::{FAMILIES, HalfProduct, Made, Shift, Times};
use unisono_testkit::{Ran, adapters, relative_error, run};

/// Returns the results of a graph for `x` = 1: as traced, simplified and compiled.
fn values(f: impl Fn(&Var) -> Var) -> [f64; 3] {
    let tape = Tape::new();
    tape.output("y", &f(&tape.input("x", Type::sample(&[1]))));
    let graph = tape.finish().unwrap();
    let value = |graph: &Graph| interpret(graph, &one()).outputs["y"].data[0];
    [value(&graph), value(&simplify(&graph)), value(Program::compile(&graph).unwrap().graph())]
}

/// One sample with the value 1.
fn one() -> Feed {
    let inputs = vec![Array::new(&[1, 1], vec![1.0])];
    Feed { frame: Frame { shards: vec![1] }, inputs, states: vec![] }
}

#[test]
fn two_types_of_one_name_stay_apart() {
    assert_eq!(values(|x| x.apply(Times::<2>) + x.apply(Times::<3>) * 10.0), [32.0; 3]);
}

#[test]
fn one_type_with_two_values_of_a_field_stays_apart() {
    assert_eq!(values(|x| x.apply(Shift { by: 2.0 }) + x.apply(Shift { by: 1.0 }) * 10.0), [23.0; 3]);
}

#[test]
fn an_op_called_mul_is_not_our_product() {
    assert_eq!(values(|x| x.zip(HalfProduct, &[&x.tape().constant(1.0)])), [0.5; 3]);
    assert_eq!(values(|x| x.zip(HalfProduct, &[x]) + 1.0), [1.5; 3]);
}

#[test]
fn a_device_computes_each_op_as_its_own() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[1]));
    tape.output("types", &(x.apply(Times::<2>) + x.apply(Times::<3>) * 10.0));
    tape.output("fields", &(x.apply(Shift { by: 2.0 }) + x.apply(Shift { by: 1.0 }) * 10.0));
    tape.output("alone", &x.zip(HalfProduct, &[&tape.constant(1.0)]));
    tape.output("before a sum", &(x.zip(HalfProduct, &[&x]) + 1.0));
    let slope = tape.gradients(&x.apply(Times::<3>).zip(HalfProduct, &[&x]).sum_all().sum_shards(), &[x]);
    tape.output("gradient", &slope[0]);
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    for mut device in devices() {
        let outputs = run(&mut device, &program, &one()).unwrap().outputs;
        let found = ["types", "fields", "alone", "before a sum", "gradient"].map(|name| outputs[name][0]);
        assert_eq!(found, [32.0, 23.0, 0.5, 1.5, 3.0]);
    }
}

fn devices() -> impl Iterator<Item = Device> {
    let adapters = adapters();
    assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
    adapters.into_iter().map(|adapter| Device::open(&adapter).unwrap())
}

/// Returns `by_default`, or `long` with `UNISONO_LONG` set.
fn cases(by_default: u64, long: u64) -> u64 {
    if std::env::var_os("UNISONO_LONG").is_some() { long } else { by_default }
}

fn draws(seed: u64) -> Draws {
    Draws::of(seed, "test", "own ops", 0, 0)
}

fn pick<'a, T>(from: &'a [T], draws: &mut Draws) -> &'a T {
    &from[draws.below(from.len() as u32) as usize]
}

/// A random op. Some are drawn again from the same numbers, so that equal ops are frequent.
fn random_op(seed: u64, draws: &mut Draws) -> Made {
    let family = pick(FAMILIES, draws);
    family(&mut Draws::of(seed, "test", "op", draws.below(3), 0))
}

/// Nodes are one exactly if their ops and operands are: every node is an output, and two outputs of the
/// simplified graph are the same node exactly if they stand for the same words on the same operands.
#[test]
fn nodes_are_merged_exactly_where_op_and_operands_are_equal() {
    let mut merged = 0;
    for seed in 0..cases(3_000, 300_000) {
        let (mut draws, tape) = (draws(seed), Tape::new());
        let inputs = ["a", "b"].map(|name| tape.input(name, Type::sample(&[2])));
        let mut nodes: Vec<(Var, usize)> = inputs.iter().cloned().zip(0..).collect();
        let mut classes: BTreeMap<(Vec<u64>, Vec<usize>), usize> = BTreeMap::new();
        for _ in 0..24 {
            let [(x, x_class), (y, y_class)] = [(); 2].map(|()| pick(&nodes, &mut draws).clone());
            let (new, words, operands) = match draws.below(8) {
                0 => (x.tanh(), vec![100], vec![x_class]),
                1 => (x.maximum(&y), vec![101], vec![x_class, y_class]),
                _ => {
                    let made = random_op(seed, &mut draws);
                    (tape.apply_dyn(made.op, &[&x]), made.words, vec![x_class])
                }
            };
            let next = inputs.len() + classes.len();
            let class = *classes.entry((words, operands)).or_insert(next);
            nodes.push((new, class));
        }
        nodes.iter().enumerate().for_each(|(i, (node, _))| tape.output(&i.to_string(), node));
        let graph = simplify(&tape.finish().unwrap());
        let mut node_of: BTreeMap<usize, usize> = BTreeMap::new();
        for ((_, class), output) in nodes.iter().zip(&graph.outputs) {
            let node = *node_of.entry(*class).or_insert(output.node);
            assert_eq!(node, output.node, "seed {seed}: equal nodes are two in\n{graph}");
        }
        let apart: BTreeSet<usize> = node_of.values().copied().collect();
        assert_eq!(apart.len(), node_of.len(), "seed {seed}: different nodes are one in\n{graph}");
        merged += nodes.len() - node_of.len();
    }
    assert!(merged > 1_000, "{merged} nodes were merged");
}

/// A random graph of users' ops and our own, with gradients, sums over samples and parts.
fn random_graph(seed: u64) -> Graph {
    let (mut draws, tape) = (draws(seed), Tape::new());
    let weight = tape.state("w", &[4, 4], StateKind::Parameter);
    let inputs = [tape.input("a", Type::sample(&[4])), tape.input("b", Type::sample(&[4]))];
    let mut nodes: Vec<Var> = inputs.to_vec();
    nodes.push(&inputs[1] * &weight.slice(0, 1..2).reshape(&[4]));
    for _ in 0..4 + draws.below(12) {
        let [x, y] = [(); 2].map(|()| pick(&nodes, &mut draws).clone());
        let new = match draws.below(16) {
            0 => &x + &y,
            1 => &x - &y,
            2 => (&x * &y).tanh(),
            3 => -&x,
            4 => x.matmul(&weight) * 0.25,
            5 => x.slice(1, 0..2).concat(&[&y.slice(1, 2..4)], 1),
            6 => &x - &x.max(&[-1]).reshape(&[1]),
            7 => x.reshape(&[2, 2]).transpose(1, 2).reshape(&[4]),
            _ => tape.apply_dyn(random_op(seed, &mut draws).op, &[&x]),
        };
        nodes.push(if new.dims() == [4] { new } else { x });
    }
    let total = nodes[3..].iter().cloned().reduce(|a, b| a + b).unwrap_or_else(|| inputs[0].clone());
    let each = inputs[0].clone() * 0.5 + total;
    tape.output("y", &each);
    let loss = each.sum(&[-1]).sum_shards();
    tape.output("loss", &loss);
    let gradients = tape.gradients(&loss, &[weight.clone(), inputs[1].clone()]);
    tape.output("db", &gradients[1]);
    tape.update(&weight, &(&weight - &(&gradients[0] * 0.125)));
    tape.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

fn feed(seed: u64) -> Feed {
    let mut draws = Draws::of(seed, "test", "values", 0, 0);
    let mut array = |dims: &[usize]| Array::generate(dims, |_| f64::from(draws.range(-1.0, 1.0)));
    let inputs = vec![array(&[5, 4]), array(&[5, 4])];
    Feed { frame: Frame { shards: vec![3, 2] }, inputs, states: vec![array(&[4, 4])] }
}

/// Returns whether numbers are as close as f64 arithmetic in another order leaves them.
fn is_near(a: &Array, b: &Array) -> bool {
    a.dims == b.dims && a.data.iter().zip(&b.data).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()))
}

#[test]
fn passes_keep_what_random_graphs_mean() {
    for seed in 0..cases(2_000, 200_000) {
        let (graph, feed) = (random_graph(seed), feed(seed));
        let expected = interpret(&graph, &feed);
        let program = Program::compile(&graph).unwrap();
        for (stage, other) in [("simplified", &simplify(&graph)), ("compiled", program.graph())] {
            let found = interpret(other, &feed);
            for (name, array) in &expected.outputs {
                assert!(
                    is_near(&found.outputs[name], array),
                    "seed {seed}, {stage}: {name}\n{graph}\n{other}"
                );
            }
            assert!(is_near(&found.updates[&0], &expected.updates[&0]), "seed {seed}, {stage}\n{graph}");
        }
    }
}

#[test]
fn devices_compute_what_random_graphs_mean() {
    let devices: Vec<Device> = devices().collect();
    for mut device in devices {
        for seed in 0..cases(16, 1_000) {
            let (graph, feed) = (random_graph(seed), feed(seed));
            let expected = interpret(&graph, &feed);
            let program = Program::compile(&graph).unwrap();
            let Ran { outputs, states, .. } = run(&mut device, &program, &feed).unwrap();
            for (name, array) in &expected.outputs {
                let error = relative_error(&outputs[name], array);
                assert!(error < 1e-5, "seed {seed}: {name} is off by {error:e}\n{graph}");
            }
            let error = relative_error(&states["w"], &expected.updates[&0]);
            assert!(error < 1e-5, "seed {seed}: w is off by {error:e}\n{graph}");
        }
    }
}
