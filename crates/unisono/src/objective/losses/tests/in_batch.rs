//! Losses over the whole batch, beside the same formulas by loops, and their gradients beside differences.

use unisono_graph::{Array, DType, Feed, Frame, RandomKey, Tape, interpret};

use crate::{BarlowTwins, InBatchSoftmax, Loss, NtXent, TripletHard, Type};

const LABELS: [f64; 5] = [0.0, 1.0, 0.0, 2.0, 1.0];

/// Returns some numbers without a pattern.
fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|i| f64::from(f32::from(((i * 7919 + 13) % 101) as u8) / 50.0 - 1.0)).collect()
}

/// Returns the losses of five samples in two shards, and the gradient of their mean. The batch begins at the
/// position 8 of the epoch, so that rows are not samples.
fn run(loss: &dyn Loss, dims: &[usize], x: &[f64]) -> [Vec<f64>; 2] {
    let tape = Tape::new();
    let output = tape.input("x", Type::sample(dims));
    let labels = tape.input("y", Type::sample(&[]).of(DType::I32));
    assert_eq!(loss.accepts(output.ty(), labels.ty()), Ok(()));
    let each = loss.per_sample(&output, &labels);
    tape.output("loss", &each);
    tape.output("dx", &tape.gradients(&each.sum_shards(), &[output])[0]);
    let key = RandomKey { seed: 1, epoch: 0, position: 8 };
    let graph = tape.finish().unwrap();
    let inputs = graph.inputs.iter().map(|input| match &*input.name {
        "x" => Array::new(&[&[5], dims].concat(), x.to_vec()),
        "y" => Array::new(&[5], LABELS.to_vec()),
        _ => Array::new(&[8], key.words().map(f64::from).to_vec()),
    });
    let feed = Feed { frame: Frame { shards: vec![2, 3] }, inputs: inputs.collect(), states: vec![] };
    let out = interpret(&graph, &feed).outputs;
    ["loss", "dx"].map(|name| out[name].data.clone())
}

/// Compares losses with expected ones, and the gradient with central differences.
fn check(loss: &dyn Loss, dims: &[usize], expected: impl Fn(&[f64]) -> Vec<f64>) {
    let x = numbers(5 * dims.iter().product::<usize>());
    let [each, dx] = run(loss, dims, &x);
    let close = |a: f64, b: f64, most: f64| assert!((a - b).abs() < most, "{}: {a} is not {b}", loss.name());
    each.iter().zip(expected(&x)).for_each(|(a, b)| close(*a, b, 1e-6));
    for at in 0..x.len() {
        let moved = |by: f64| {
            let mut x = x.clone();
            x[at] += by;
            expected(&x).iter().sum::<f64>()
        };
        close(dx[at], (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-5);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the vectors `[.., 3]` with length 1.
fn units(x: &[f64]) -> Vec<Vec<f64>> {
    x.chunks(3).map(|row| row.iter().map(|x| x / dot(row, row).sqrt()).collect()).collect()
}

fn log_sum(x: impl Iterator<Item = f64>) -> f64 {
    x.map(f64::exp).sum::<f64>().ln()
}

/// SimCLR's: of 2 N views, all but the view itself are in the sum.
#[test]
fn nt_xent_is_by_hand() {
    check(&NtXent::new(0.5, 7), &[2, 3], |x| {
        let views = units(x);
        let loss = |own: usize| {
            let others = (0..views.len()).filter(|&other| other != own);
            let sum = log_sum(others.map(|other| dot(&views[own], &views[other]) / 0.5));
            sum - dot(&views[own], &views[own ^ 1]) / 0.5
        };
        (0..5).map(|sample| (loss(2 * sample) + loss(2 * sample + 1)) / 2.0).collect()
    });
}

/// CLIP's: cross-entropy of the matrix of cosines, by rows and by columns.
#[test]
fn in_batch_softmax_is_by_hand() {
    check(&InBatchSoftmax::new(0.25, 6), &[2, 3], |x| {
        let views = units(x);
        let logit = |a: usize, b: usize| dot(&views[2 * a], &views[2 * b + 1]) / 0.25;
        let loss = |i: usize| {
            let [rows, columns] =
                [log_sum((0..5).map(|j| logit(i, j))), log_sum((0..5).map(|j| logit(j, i)))];
            (rows + columns) / 2.0 - logit(i, i)
        };
        (0..5).map(loss).collect()
    });
}

#[test]
fn barlow_twins_is_by_hand() {
    check(&BarlowTwins::new(0.125), &[2, 3], |x| {
        let feature = |view: usize, at: usize| {
            let own: Vec<f64> = (0..5).map(|sample| x[(2 * sample + view) * 3 + at]).collect();
            let mean = own.iter().sum::<f64>() / 5.0;
            let variance = own.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.0;
            own.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).collect::<Vec<f64>>()
        };
        let mut sum = 0.0;
        for i in 0..3 {
            for j in 0..3 {
                let c = dot(&feature(0, i), &feature(1, j)) / 5.0;
                sum += if i == j { (1.0 - c).powi(2) } else { 0.125 * c * c };
            }
        }
        vec![sum; 5]
    });
}

/// The label 2 is there once, so that its sample has no positive.
#[test]
fn hard_triplets_are_by_hand() {
    check(&TripletHard::new(0.75, 5), &[3], |x| {
        let rows: Vec<&[f64]> = x.chunks(3).collect();
        let distance = |a: usize, b: usize| {
            rows[a].iter().zip(rows[b]).map(|(a, b)| (a - b + 1e-6).powi(2)).sum::<f64>().sqrt()
        };
        let loss = |own: usize| {
            let of = |same: bool| {
                let others =
                    (0..5).filter(move |&other| other != own && (LABELS[other] == LABELS[own]) == same);
                others.map(move |other| distance(own, other)).collect::<Vec<_>>()
            };
            let (positive, negative) = (of(true), of(false));
            let Some(farthest) = positive.into_iter().reduce(f64::max) else { return 0.0 };
            (farthest - negative.into_iter().fold(f64::MAX, f64::min) + 0.75).max(0.0)
        };
        (0..5).map(loss).collect()
    });
}
