//! Outputs on every adapter that the f64 reference alone does not cover: two of one name, and NaN.

use unisono_gpu::Device;
use unisono_graph::{Array, Feed, Frame, Program, StateKind, Tape, Type, interpret};
use unisono_testkit::emulator::{Choices, emulate};
use unisono_testkit::{adapters, plan_for, run};

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

/// Two resident memories that change places, one that is changed where it is, one that is kept, and two that
/// are shown: all of them are of the step before. So it is on the emulator, which is given what they held.
#[test]
fn what_a_step_reads_of_resident_memory_is_of_the_step_before() {
    let ty = || Type::sample(&[4]);
    let tape = Tape::new();
    let x = tape.input("x", ty());
    (0..4).for_each(|number| tape.keep_resident(number, &(&x + number as f32)));
    tape.output("0", &x);
    let fill = Program::compile(&tape.finish().unwrap()).unwrap();
    let tape = Tape::new();
    let x = tape.input("x", ty());
    let [a, b, c, kept] = [0, 1, 2, 3].map(|number| tape.resident(number, ty()));
    tape.keep_resident(0, &b);
    tape.keep_resident(1, &(&a * 1.0));
    tape.keep_resident(2, &(&c * 2.0 + &x));
    tape.keep_resident(3, &kept);
    tape.output("0", &a);
    tape.output("1", &(&b + &b));
    tape.output("2", &c.reshape(&[2, 2]));
    tape.output("3", &kept);
    let next = Program::compile(&tape.finish().unwrap()).unwrap();
    let given: Vec<f64> = (0..8).map(f64::from).collect();
    let x = Array::new(&[2, 4], given.clone());
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        run(&mut device, &fill, &feed(vec![x.clone()])).unwrap();
        let mut held: Vec<Vec<f64>> =
            (0..4).map(|number| given.iter().map(|x| x + f64::from(number)).collect()).collect();
        for step in 0..4 {
            let inputs = held.iter().map(|values| Array::new(&[2, 4], values.clone()));
            let feed = feed([x.clone()].into_iter().chain(inputs).collect());
            let ran = run(&mut device, &next, &feed).unwrap();
            let plan = plan_for(&device.target(), &next, &feed).unwrap();
            let emulated = emulate(&next, &plan, &feed, Choices::default());
            assert!(emulated.faults.is_empty(), "{:?}", emulated.faults);
            for (number, values) in held.iter().enumerate() {
                let factor = if number == 1 { 2.0 } else { 1.0 };
                let expected: Vec<f32> = values.iter().map(|&x| (factor * x) as f32).collect();
                for (outputs, label) in
                    [(&ran.outputs, adapter.label()), (&emulated.ran.outputs, "emulated".into())]
                {
                    assert_eq!(outputs[&number.to_string()], expected, "{number}, step {step}, on {label}");
                }
            }
            held.swap(0, 1);
            held[2] = held[2].iter().zip(&given).map(|(c, x)| 2.0 * c + x).collect();
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
