//! Values that are computed where they lie in a larger one are as in the f64 reference, on every adapter,
//! whether four elements are computed at a time or not.

use unisono_gpu::Device;
use unisono_graph::{Array, DType, Feed, Frame, Graph, Program, StateKind, Tape, Type, Var, interpret};
use unisono_testkit::{adapters, relative_error, run};

use crate::heads::is_right_everywhere;

const SHARDS: [usize; 3] = [3, 2, 1];
const STEPS: usize = 5;

/// Returns a recurrent cell unrolled over `[B, STEPS, width]`: its gates lie in their step, the steps in the
/// sequence; then joins along the last axis, with a leaf and with a value that is in another join already.
/// The outputs are the result and the gradient of the cell's weight.
fn model(width: usize) -> Graph {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[STEPS, width]));
    let w = tape.state("w", &[2 * width, width], StateKind::Parameter);
    let step = |i: usize| x.slice(1, i..i + 1).reshape(&[width]);
    let steps: Vec<Var> = tape.unrolled(|| {
        let mut h = step(0);
        let cell = |i| {
            let gates = h.matmul_t(&w);
            let [keep, new] = [0, 1].map(|gate| gates.slice(1, gate * width..(gate + 1) * width));
            h = keep.sigmoid() * &h + new.tanh() * step(i);
            h.clone()
        };
        (1..STEPS).map(cell).collect()
    });
    let rows: Vec<Var> = steps.iter().map(|h| h.reshape(&[1, width])).collect();
    let all = rows[0].concat(&[&rows[1], &rows[2], &rows[3]], 1);
    let first = step(0).reshape(&[1, width]);
    let y = all.concat(&[&first.exp()], 1).concat(&[&x, &(&x * 2.0).tanh()], -1);
    let loss = (&y * &y).sum_all().sum_shards();
    tape.output("y", &y);
    tape.output("dw", &tape.gradients(&loss, std::slice::from_ref(&w))[0]);
    tape.finish().unwrap()
}

#[test]
fn parts_are_where_they_belong_on_every_adapter() {
    for adapter in adapters() {
        for width in [4, 5] {
            let mut device = Device::open(&adapter).unwrap();
            let graph = model(width);
            let samples: usize = SHARDS.iter().sum();
            let numbers = |count: usize| (0..count).map(|n| (n * 7 % 11) as f64 / 8.0 - 0.6).collect();
            let feed = Feed {
                frame: Frame { shards: SHARDS.to_vec() },
                inputs: vec![Array::new(&[samples, STEPS, width], numbers(samples * STEPS * width))],
                states: vec![Array::new(&[2 * width, width], numbers(2 * width * width))],
            };
            let expected = interpret(&graph, &feed).outputs;
            let outputs = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap().outputs;
            for name in ["y", "dw"] {
                let error = relative_error(&outputs[name], &expected[name]);
                assert!(error < 1e-5, "{name}, width {width}, on {}: {error:e}", adapter.label());
            }
        }
    }
}

/// Axes are merged and split again, so the four elements that a lane reads may need different divisors.
#[test]
fn axes_that_move_through_each_other_are_right_on_every_adapter() {
    let mut shapes = 0;
    for (rows, columns) in [(40_usize, 3), (12, 10), (20, 9)] {
        for split in (2..=rows * columns / 2).filter(|split| (rows * columns).is_multiple_of(*split)) {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[rows, columns]));
            let apart = x.permute(&[1, 0]).reshape(&[rows * columns / split, split]);
            tape.output("y", &apart.permute(&[1, 0]).exp());
            let graph = tape.finish().unwrap();
            is_right_everywhere(
                &format!("{rows} x {columns} by {split}"),
                &graph,
                &Program::compile(&graph).unwrap(),
            );
            shapes += 1;
        }
    }
    assert!(shapes > 30, "{shapes}");
}

#[test]
fn sums_of_products_of_integers_are_exact() {
    let tape = Tape::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| tape.input(name, Type::sample(&[4]).of(DType::I32)));
    for (name, y) in [("sum", &a * &b + &c), ("difference", &c - &a * &b), ("other", &a * &b - &c)] {
        tape.output(name, &y.to_f32());
    }
    let graph = tape.finish().unwrap();
    let numbers = |by: usize| Array::new(&[3, 4], (0..12).map(|n| (n * by % 1999) as f64 - 900.0).collect());
    let inputs = vec![numbers(911), numbers(577), numbers(373)];
    let feed = Feed { frame: Frame { shards: vec![2, 1] }, inputs, states: vec![] };
    let expected = interpret(&graph, &feed).outputs;
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let found = run(&mut device, &Program::compile(&graph).unwrap(), &feed).unwrap().outputs;
        for (name, found) in found {
            let found: Vec<f64> = found.into_iter().map(f64::from).collect();
            assert_eq!(found, expected[&name].data, "{name} on {}", adapter.label());
        }
    }
}
