mod in_batch;

use unisono_graph::{Array, DType, Feed, Frame, Tape, interpret};

use super::*;

const LOGITS: [f64; 9] = [0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 1.0, -2.0];

/// Returns the losses and weights of samples, and the gradient of their weighted mean by the output.
fn run(loss: &dyn Loss, output: (&[usize], &[f64]), target: (&[usize], &[f64], DType)) -> [Vec<f64>; 3] {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&output.0[1..]));
    let y = tape.input("y", Type::sample(&target.0[1..]).of(target.2));
    assert_eq!(loss.accepts(x.ty(), y.ty()), Ok(()));
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

/// Labels may lack the axis of one logit, may have one that the logit lacks, and may be whole numbers.
#[test]
fn binary_losses_take_labels_without_the_axis_of_one_logit() {
    let losses: [&dyn Loss; 4] =
        [&BinaryCrossEntropyWithLogits, &BinaryFocal::new(), &Dice::new(), &Hinge::new().squared()];
    let (x, y) = ([0.3, -2.0, 1.5], [1.0, 1.0, 1.0]);
    let one = |dims: &[usize]| Type::sample(dims);
    for loss in losses {
        let expected = run(loss, (&[3, 1], &x), (&[3, 1], &y, DType::F32));
        for (output, target) in [(&[3usize, 1][..], &[3usize][..]), (&[3], &[3, 1]), (&[3], &[3])] {
            for dtype in [DType::F32, DType::I32] {
                let found = run(loss, (output, &x), (target, &y, dtype));
                assert_eq!(found, expected, "{} {output:?} {target:?}", loss.name());
            }
        }
        let problem = loss.accepts(&one(&[1]), &one(&[2])).unwrap_err();
        assert_eq!(problem, "the model gives [B, 1], which needs targets [B, 1]; got [B, 2]");
        assert!(loss.accepts(&one(&[2]), &one(&[])).is_err());
        assert!(loss.accepts(&one(&[1, 1]), &one(&[])).is_err());
        let boxed: Box<dyn Loss> = Box::new(Dice::new());
        assert_eq!(boxed.accepts(&one(&[1]), &one(&[])), Ok(()));
    }
    assert!(MeanSquaredError.accepts(&one(&[1]), &one(&[])).is_err());
}

#[test]
fn targets_that_no_loss_can_mean_are_errors() {
    let pixels = Type::sample(&[2]);
    let bad = Field::f32([3, 2], [0.0, 1.0, 0.5, 1.0, 1.5, 0.0]);
    let problem = Err((2, "target 1.5 is not in [0, 1]".to_string()));
    assert_eq!(BinaryCrossEntropyWithLogits.check(&pixels, &bad), problem);
    assert_eq!(BinaryFocal::new().check(&pixels, &bad), problem);
    assert_eq!(Dice::new().check(&pixels, &bad), problem);
    let labels = Field::i32([3], [1, -1, 0]);
    assert_eq!(Hinge::new().check(&Type::sample(&[1]), &labels), Err((2, "target 0 is not -1 or 1".into())));
    let pair = Type::sample(&[2, 8]);
    assert_eq!(CosineEmbedding::new(0.1).check(&pair, &labels), Err((2, "target 0 is not -1 or 1".into())));
    assert_eq!(Contrastive::default().check(&pair, &labels), Err((1, "target -1 is not in [0, 1]".into())));
    let counts = Field::f32([2], [3.0, -1.0]);
    let problem = Err((1, "target -1 is negative or not finite".to_string()));
    assert_eq!(PoissonNll::new().check(&Type::sample(&[1]), &counts), problem);
    let shares = Field::f32([2, 2], [0.5, 0.5, 1.5, -0.5]);
    let rule = "none may be negative, and their sum must be 1";
    let problem = Err((1, format!("[1.5, -0.5] is no distribution over 2 classes: {rule}")));
    assert_eq!(KlDivergence::new().check(&pixels, &shares), problem);
    let problem = Err((0, format!("[3.0] is no distribution over 1 classes: {rule}")));
    assert_eq!(KlDivergence::new().check(&Type::sample(&[1]), &counts), problem);
    assert!(MultiMargin::new().check(&Type::sample(&[3]), &Field::i32([1], [3])).is_err());
}

#[test]
fn settings_of_losses_that_cannot_work_are_errors() {
    let losses: [(&dyn Loss, &str); 10] = [
        (&BinaryFocal::new().gamma(-1.0), "gamma -1 is negative or not finite"),
        (&BinaryFocal::new().alpha(1.5), "alpha 1.5 is not in [0, 1]"),
        (&Dice::new().smooth(0.0), "smooth 0 is not a finite number above 0"),
        (&Hinge::new().margin(-1.0), "margin -1 is not a finite number above 0"),
        (&MultiMargin::new().margin(f32::NAN), "margin NaN is not a finite number above 0"),
        (&PoissonNll::new().epsilon(0.0), "epsilon 0 is not a finite number above 0"),
        (&CosineEmbedding::new(2.0), "margin 2 is not in [-1, 1]"),
        (&Contrastive::new(0.0), "margin 0 is not a finite number above 0"),
        (&TripletMargin::new(-0.5), "margin -0.5 is not a finite number above 0"),
        (&TripletMargin::new(0.5), "needs 3 vectors for each sample, [B, 3, E], the model gives [B, 2, 4]"),
    ];
    for (loss, problem) in losses {
        assert_eq!(loss.target(&Type::sample(&[2, 4])), Err(problem.into()));
    }
}

/// Where an error is large, where nothing is wrong, and where vectors are equal, loss and gradient are
/// finite.
#[test]
fn far_ends_are_finite() {
    let (x, zeros) = ([500.0, -500.0, 0.0, 1e4], [0.0; 4]);
    let [each, _, dx] = run(&LogCosh, (&[4, 1], &x), (&[4, 1], &zeros, DType::F32));
    close(&each, &[500.0 - 2f64.ln(), 500.0 - 2f64.ln(), 0.0, 1e4 - 2f64.ln()]);
    close(&dx, &[0.25, -0.25, 0.0, 0.25]);
    for gamma in [0.0, 0.5, 2.0] {
        let focal = BinaryFocal::new().gamma(gamma).no_alpha();
        let [each, _, dx] = run(&focal, (&[2, 1], &[200.0, -200.0]), (&[2, 1], &[1.0, 1.0], DType::F32));
        close(&each, &[0.0, 200.0]);
        assert!(dx.iter().all(|x| x.is_finite()), "{dx:?}");
    }
    let same = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
    let [each, _, dx] = run(&TripletMargin::new(0.5), (&[1, 3, 2], &same), (&[1], &[0.0], DType::F32));
    close(&each, &[0.5]);
    assert!(dx.iter().all(|x| x.is_finite()), "{dx:?}");
    let nothing = [0.0; 4];
    let [each, _, dx] = run(&CosineEmbedding::new(0.0), (&[1, 2, 2], &nothing), (&[1], &[1.0], DType::F32));
    close(&each, &[1.0]);
    assert!(dx.iter().all(|x| x.is_finite()), "{dx:?}");
}

/// The probability of labels is the sum over all spellings.
#[test]
fn ctc_adds_up_all_spellings() {
    const STEPS: usize = 4;
    let logits: Vec<f64> = (0..2 * STEPS * 3).map(|i| (i as f64 * 1.7).sin() * 2.0).collect();
    let rows: [&[usize]; 2] = [&[1, 1], &[2]];
    let labels = [1.0, 1.0, 2.0, -1.0];
    let [each, _, dx] = run(&Ctc, (&[2, STEPS, 3], &logits), (&[2, 2], &labels, DType::I32));
    for (row, expected) in rows.iter().enumerate() {
        let logs: Vec<Vec<f64>> = logits.chunks(3).skip(row * STEPS).take(STEPS).map(log_softmax).collect();
        let mut probability = 0.0;
        for code in 0..3usize.pow(STEPS as u32) {
            let path: Vec<usize> = (0..STEPS).map(|step| code / 3usize.pow(step as u32) % 3).collect();
            let mut spelled = path.clone();
            spelled.dedup();
            spelled.retain(|&class| class > 0);
            if spelled == *expected {
                probability += path.iter().zip(&logs).map(|(&class, log)| log[class]).sum::<f64>().exp();
            }
        }
        assert!((each[row] + probability.ln()).abs() < 1e-6, "{} is not {}", each[row], -probability.ln());
    }
    // Logits of one step may all be moved.
    assert!(dx.chunks(3).all(|step| step.iter().sum::<f64>().abs() < 1e-9), "{dx:?}");
    assert!(dx.iter().all(|x| x.abs() > 1e-6), "{dx:?}");
}

#[test]
fn ctc_says_which_labels_cannot_be_spelled() {
    let output = Type::sample(&[3, 4]);
    for (labels, problem) in [
        ([1, 2, 3], None),
        ([0, 0, 0], None),
        (
            [1, 0, 3],
            Some(
                "label 3 comes after the end of the labels: 0 is the blank, which ends them, so classes count from 1",
            ),
        ),
        ([1, 4, 0], Some("label 4 is not in 1..4")),
        ([2, 2, 3], Some("3 labels need 4 steps, and there are 3")),
    ] {
        let rows: Vec<i32> = [1, 1, -1].into_iter().chain(labels).collect();
        let found = Ctc.check(&output, &Field::i32([2, 3], rows));
        assert_eq!(found, problem.map_or(Ok(()), |problem| Err((1, problem.into()))));
    }
    let labels = |length: usize| Type::sample(&[length]).of(DType::I32);
    assert_eq!(Ctc.accepts(&output, &labels(2)), Ok(()));
    assert!(Ctc.accepts(&output, &labels(4)).is_err() && Ctc.accepts(&output, &Type::sample(&[2])).is_err());
    assert!(Ctc.accepts(&Type::sample(&[3]), &labels(2)).is_err());
}
