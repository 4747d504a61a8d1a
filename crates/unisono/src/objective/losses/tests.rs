use unisono_graph::{Array, DType, Feed, Frame, Tape, interpret};

use super::*;

const LOGITS: [f64; 9] = [0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 1.0, -2.0];

/// Returns the losses and weights of samples, and the gradient of their weighted mean by the output.
fn run(loss: &dyn Loss, output: (&[usize], &[f64]), target: (&[usize], &[f64], DType)) -> [Vec<f64>; 3] {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&output.0[1..]));
    let y = tape.input("y", Type::sample(&target.0[1..]).of(target.2));
    assert_eq!(&loss.target(x.ty()).unwrap(), y.ty());
    let each = loss.per_sample(&x, &y);
    let weight =
        loss.weight(&y).unwrap_or_else(|| tape.constant(1.0).expand(unisono_graph::Lead::Sample, &[]));
    let mean = (&each * &weight).sum_shards() / weight.sum_shards();
    tape.output("loss", &each);
    tape.output("weight", &weight);
    tape.output("dx", &tape.gradients(&mean, &[x])[0]);
    let inputs = vec![Array::new(output.0, output.1.to_vec()), Array::new(target.0, target.1.to_vec())];
    let feed = Feed { frame: Frame { shards: vec![1, output.0[0] - 1] }, inputs, states: vec![] };
    let out = interpret(&tape.finish().unwrap(), &feed).outputs;
    ["loss", "weight", "dx"].map(|name| out[name].data.clone())
}

fn close(a: &[f64], b: &[f64]) {
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} is not {b:?}");
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|x| x.exp()).sum();
    row.iter().map(|x| x - sum.ln()).collect()
}

#[test]
fn cross_entropy_smooths_and_takes_probabilities() {
    let labels = (&[3usize][..], &[2.0, 0.0, 1.0][..], DType::I32);
    let logs: Vec<Vec<f64>> = LOGITS.chunks(3).map(log_softmax).collect();
    let [plain, ..] = run(&CrossEntropy::new(), (&[3, 3], &LOGITS), labels);
    close(&plain, &[-logs[0][2], -logs[1][0], -logs[2][1]]);
    let [smooth, _, dx] = run(&CrossEntropy::new().label_smoothing(0.1), (&[3, 3], &LOGITS), labels);
    let expected: Vec<f64> =
        plain.iter().zip(&logs).map(|(p, l)| 0.9 * p - 0.1 * l.iter().sum::<f64>() / 3.0).collect();
    close(&smooth, &expected);
    let one_hot = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    let soft = CrossEntropy::new().label_smoothing(0.1).probabilities();
    let [other, _, other_dx] = run(&soft, (&[3, 3], &LOGITS), (&[3, 3], &one_hot, DType::F32));
    close(&other, &smooth);
    close(&other_dx, &dx);
}

/// A box passes on what has a default too.
#[test]
fn a_boxed_loss_is_the_loss() {
    let loss = CrossEntropy::new().ignore_index(-100);
    let boxed: Box<dyn Loss> = Box::new(loss);
    let target = (&[3usize][..], &[2.0, -100.0, 1.0][..], DType::I32);
    assert_eq!(run(&boxed, (&[3, 3], &LOGITS), target), run(&loss, (&[3, 3], &LOGITS), target));
    let bad = Field::i32([1], [7]);
    let problem = loss.check(&Type::sample(&[3]), &bad);
    assert!(problem.is_err());
    assert_eq!(boxed.check(&Type::sample(&[3]), &bad), problem);
}

#[test]
fn ignored_labels_count_nowhere() {
    let loss = CrossEntropy::new().ignore_index(-100);
    let [each, weight, dx] = run(&loss, (&[3, 3], &LOGITS), (&[3], &[2.0, -100.0, 1.0], DType::I32));
    let logs: Vec<Vec<f64>> = LOGITS.chunks(3).map(log_softmax).collect();
    close(&each, &[-logs[0][2], 0.0, -logs[2][1]]);
    close(&weight, &[1.0, 0.0, 1.0]);
    close(&dx[3..6], &[0.0; 3]);
    close(&dx[..3], &[logs[0][0].exp() / 2.0, logs[0][1].exp() / 2.0, (logs[0][2].exp() - 1.0) / 2.0]);
    // Of two samples with two tokens each, three tokens count. The loss is the mean over these.
    let twelve: Vec<f64> = LOGITS.iter().chain(&LOGITS[..3]).copied().collect();
    let [each, weight, _] =
        run(&loss, (&[2, 2, 3], &twelve), (&[2, 2], &[2.0, -100.0, 1.0, 0.0], DType::I32));
    close(&weight, &[1.0, 2.0]);
    close(&each, &[-logs[0][2], -(logs[2][1] + logs[0][0]) / 2.0]);
}

#[test]
fn binary_cross_entropy_is_finite_and_centred() {
    let (x, y) = ([0.0, 100.0, -100.0, 0.7], [1.0, 1.0, 0.0, 0.3]);
    let [each, _, dx] = run(&BinaryCrossEntropyWithLogits, (&[4, 1], &x), (&[4, 1], &y, DType::F32));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    close(&each, &[2f64.ln(), 0.0, 0.0, -(0.3 * sigmoid(0.7).ln() + 0.7 * sigmoid(-0.7).ln())]);
    close(&dx, &[-0.125, 0.0, 0.0, (sigmoid(0.7) - 0.3) / 4.0]);
}

#[test]
fn distances() {
    let (x, y) = ([0.5, -3.0, 1.0, 2.0], [0.0, 0.0, 1.0, 0.0]);
    let [huber, _, dx] = run(&Huber::default(), (&[2, 2], &x), (&[2, 2], &y, DType::F32));
    close(&huber, &[(0.125 + 2.5) / 2.0, 1.5 / 2.0]);
    close(&dx, &[0.125, -0.25, 0.0, 0.25]);
    let [absolute, ..] = run(&MeanAbsoluteError, (&[2, 2], &x), (&[2, 2], &y, DType::F32));
    close(&absolute, &[1.75, 1.0]);
    let [squared, ..] = run(&MeanSquaredError, (&[2, 2], &x), (&[2, 2], &y, DType::F32));
    close(&squared, &[4.625, 2.0]);
    assert!(Huber::new(0.0).target(&Type::sample(&[2])).is_err());
    assert!(CrossEntropy::new().label_smoothing(1.0).target(&Type::sample(&[2])).is_err());
}
