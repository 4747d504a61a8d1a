//! Outputs on every adapter that the f64 reference alone does not cover: two of one name, and NaN.

use unisono_gpu::Device;
use unisono_graph::{Array, Feed, Frame, Program, StateKind, Tape, Type, interpret};
use unisono_testkit::{adapters, run};

fn feed(inputs: Vec<Array>) -> Feed {
    Feed { frame: Frame { shards: vec![2] }, inputs, states: vec![] }
}

#[test]
fn a_carry_may_be_called_like_an_output() {
    let tape = Tape::new();
    let carry = tape.carry("y", Type::sample(&[1]));
    tape.output("y", &(&carry + 1.0));
    tape.keep(&carry, &(&carry * 2.0));
    let graph = tape.finish().unwrap();
    let feed = feed(vec![Array::new(&[2, 1], vec![3.0, 4.0])]);
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let ran = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap();
        assert_eq!(ran.outputs["y"], [4.0, 5.0], "on {}", adapter.label());
        assert_eq!(ran.carries["y"], [6.0, 8.0], "on {}", adapter.label());
    }
}

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Pairs of operands, with their maximum and minimum.
const PAIRS: [[f64; 4]; 10] = [
    [1.0, 2.0, 2.0, 1.0],
    [2.0, 1.0, 2.0, 1.0],
    [-3.0, -3.0, -3.0, -3.0],
    [-1.0, 0.0, 0.0, -1.0],
    [INF, 1.0, INF, 1.0],
    [-INF, INF, INF, -INF],
    [NAN, 1.0, NAN, NAN],
    [1.0, NAN, NAN, NAN],
    [NAN, -INF, NAN, NAN],
    [NAN, NAN, NAN, NAN],
];

/// The reference is NaN where one operand is, as PyTorch is. Devices agree with it about all other values.
/// With NaN, drivers give the one operand or the other, but nothing else.
#[test]
fn the_larger_of_two_values_is_the_same_everywhere_but_for_nan() {
    let tape = Tape::new();
    let [a, b] = ["a", "b"].map(|name| tape.input(name, Type::sample(&[5])));
    tape.output("maximum", &a.maximum(&b));
    tape.output("minimum", &a.minimum(&b));
    let graph = tape.finish().unwrap();
    let column = |i: usize| PAIRS.iter().map(|pair| pair[i]).collect::<Vec<f64>>();
    let feed = feed(vec![Array::new(&[2, 5], column(0)), Array::new(&[2, 5], column(1))]);
    let reference = interpret(&graph, &feed).outputs;
    let same = |found: f64, expected: f64| found == expected || found.is_nan() && expected.is_nan();
    for (name, i) in [("maximum", 2), ("minimum", 3)] {
        for (pair, &found) in PAIRS.iter().zip(&reference[name].data) {
            assert!(same(found, pair[i]), "{name} of {:?} is {found} in the reference", &pair[..2]);
        }
    }
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let outputs = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap().outputs;
        for (name, i) in [("maximum", 2), ("minimum", 3)] {
            for (pair, &found) in PAIRS.iter().zip(&outputs[name]) {
                let found = f64::from(found);
                let one_of_them = pair[i].is_nan() && pair[..2].iter().any(|&operand| same(found, operand));
                let message = format!("{name} of {:?} is {found} on {}", &pair[..2], adapter.label());
                assert!(one_of_them || same(found, pair[i]), "{message}");
            }
        }
    }
}

/// Two states that change places, one that keeps what another was, and one that is shown: all of them are of
/// the state before the step.
#[test]
fn what_a_step_reads_of_the_state_is_the_state_before_it() {
    for cuts in [false, true] {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[4]));
        let names = ["a", "b", "c", "old", "kept"];
        let [a, b, c, old, kept] = names.map(|name| tape.state(name, &[4], StateKind::Optimizer));
        let sum = if cuts { x.sum_samples().sum_shards() } else { tape.constant(1.0) };
        tape.update(&a, &b);
        tape.update(&b, &(&a * 1.0));
        tape.update(&c, &(&c * 0.5 + &sum + &old));
        tape.update(&old, &(&c + 0.0).reshape(&[2, 2]).reshape(&[4]));
        tape.update(&kept, &(&kept * 1.0));
        tape.output("shown", &c);
        let graph = tape.finish().unwrap();
        let state = |i: usize| Array::new(&[4], (0..4).map(|j| (8 * i + j) as f64).collect());
        let feed = Feed {
            frame: Frame { shards: vec![2] },
            inputs: vec![Array::new(&[2, 4], (0..8).map(f64::from).collect())],
            states: (0..5).map(state).collect(),
        };
        let expected = interpret(&graph, &feed);
        for adapter in adapters() {
            let mut device = Device::open(&adapter).unwrap();
            let ran = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap();
            let same = |found: &[f32], expected: &Array| {
                found.iter().map(|&x| f64::from(x)).eq(expected.data.iter().copied())
            };
            assert!(same(&ran.outputs["shown"], &expected.outputs["shown"]), "on {}", adapter.label());
            for (name, expected) in names.iter().zip(expected.updates.values()) {
                let found = &ran.states[*name];
                assert!(
                    same(found, expected),
                    "{name}: {found:?}, not {:?} on {}",
                    expected.data,
                    adapter.label()
                );
            }
        }
    }
}

/// What is summed over shards lies in a bucket; what shows it, or multiplies by it, does not read it there.
#[test]
fn what_is_summed_over_shards_may_be_used_otherwise() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[3, 4]));
    let sums = x.sum_samples();
    tape.output("shown", &sums);
    tape.output("total", &sums.sum_shards());
    let squares = x.square().sum_samples();
    tape.output("squares", &squares.sum_shards());
    tape.output("products", &squares.matmul_t(&squares).sum_shards());
    let graph = tape.finish().unwrap();
    let inputs = vec![Array::new(&[5, 3, 4], (0..60).map(|i| f64::from(i % 7)).collect())];
    let feed = Feed { frame: Frame { shards: vec![2, 2, 1] }, inputs, states: vec![] };
    let expected = interpret(&graph, &feed).outputs;
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let ran = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap();
        for (name, expected) in &expected {
            let found: Vec<f64> = ran.outputs[name].iter().map(|&x| f64::from(x)).collect();
            assert_eq!(found, expected.data, "{name} on {}", adapter.label());
        }
    }
}
