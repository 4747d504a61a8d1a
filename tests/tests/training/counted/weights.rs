//! Losses of several outputs, each with weights of its own: fields, tokens, ignored labels and classes. Each
//! is divided by its own sum of weights.

use unisono::cluster::Script;
use unisono::data::{Batch, Loader, Memory, Values};
use unisono::{
    Accuracy, BinaryCrossEntropyWithLogits, Builder, Cluster, CrossEntropy, Ctc, Dense, MeanAbsoluteError,
    MeanSquaredError, Phase, Precision, ProgramId, Saving, Sgd, Trainer,
};
use unisono_random::Draws;
use unisono_tests::on_ranks;

use super::reference::{CLASSES, Samples, log_softmax};
use super::{SAMPLES, drawn, told};

/// The learning rate of the steps that a gradient is read from.
const RATE: f32 = 0.125;

/// What weighs the losses of a case.
#[derive(Clone, Debug, Default)]
struct Case {
    /// The label that the loss of `tag` ignores.
    ignored: Option<i32>,
    /// The weights of the labels of `tag`, `[SAMPLES * length]`.
    tokens: Option<Vec<f32>>,
    /// The weights of the classes of `tag` in training.
    classes: Option<[f32; CLASSES]>,
    /// The weights of the samples of `b`.
    of_b: Option<Vec<f32>>,
}

/// Returns the means of the losses of `tag` and `b` and the sums of their weights, where both outputs are the
/// fields times a scale.
fn means(
    samples: &Samples,
    case: &Case,
    rows: std::ops::Range<usize>,
    scale: f64,
    trains: bool,
) -> [[f64; 2]; 2] {
    let (mut tag, mut b) = ([0.0; 2], [0.0; 2]);
    for sample in rows {
        let length = samples.labels[sample].len();
        for (at, &label) in samples.labels[sample].iter().enumerate() {
            let token = case.tokens.as_ref().map_or(1.0, |w| f64::from(w[sample * length + at]));
            let class = case.classes.filter(|_| trains).map_or(1.0, |w| f64::from(w[label as usize]));
            let counts = f64::from(u8::from(Some(label) != case.ignored));
            // Labels without any weight of their own share their sample's.
            let is_mean =
                case.tokens.is_none() && case.ignored.is_none() && (case.classes.is_none() || !trains);
            let share = if is_mean { 1.0 / length as f64 } else { 1.0 };
            let weight = samples.weight(sample) * token * class * counts * share;
            let logits = samples.logits[sample][at].map(|x| f64::from(x) * scale);
            tag[0] -= weight * log_softmax(logits, label as usize);
            tag[1] += weight;
        }
        let weight = samples.weight(sample) * case.of_b.as_ref().map_or(1.0, |w| f64::from(w[sample]));
        let [x, y] = samples.numbers[sample].map(f64::from);
        b[0] += weight * (scale * x - y).powi(2);
        b[1] += weight;
    }
    [tag, b]
}

/// Returns the loss as the sum of the means that were measured.
fn total([tag, b]: [[f64; 2]; 2]) -> f64 {
    let mean = |[sum, weight]: [f64; 2]| if weight == 0.0 { 0.0 } else { sum / weight };
    mean(tag) + 0.5 * mean(b)
}

fn data(samples: &Samples, case: &Case) -> Loader {
    let length = samples.labels[0].len();
    let labels: &[usize] = if length == 1 { &[] } else { &[length] };
    let mut all =
        Memory::new("logits", [labels, &[CLASSES]].concat(), Values::F32(samples.logits.concat().concat()))
            .and_then(|all| all.with("tag", labels.to_vec(), Values::I32(samples.labels.concat())))
            .unwrap();
    for (at, name) in ["number", "b"].into_iter().enumerate() {
        all = all.with(name, [1], Values::F32(samples.numbers.iter().map(|x| x[at]).collect())).unwrap();
    }
    let per_sample = [("w", &samples.weights), ("has_b", &case.of_b)];
    for (name, weights) in per_sample {
        if let Some(weights) = weights {
            all = all.with(name, [], Values::F32(weights.clone())).unwrap();
        }
    }
    if let Some(weights) = &case.tokens {
        all = all.with("tokens", labels.to_vec(), Values::F32(weights.clone())).unwrap();
    }
    Loader::new(all).batch(8)
}

fn builder(case: &Case) -> Builder {
    let entropy = case.ignored.map_or(CrossEntropy::new(), |label| CrossEntropy::new().ignore_index(label));
    let mut builder = Trainer::builder(told())
        .loss_of("tag", entropy, 1.0)
        .loss_of("b", MeanSquaredError, 0.5)
        .metric_of("b", MeanAbsoluteError)
        .metric_of("tag", Accuracy)
        .optimizer(Sgd::new(RATE));
    if let Some(weights) = case.classes {
        builder = builder.class_weights_of("tag", weights);
    }
    if case.tokens.is_some() {
        builder = builder.sample_weights_of("tag", "tokens");
    }
    if case.of_b.is_some() {
        builder = builder.sample_weights_of("b", "has_b");
    }
    builder.global_batch(8)
}

fn near(what: &str, found: f64, expected: f64, within: f64) {
    let is_same =
        found.is_nan() && expected.is_nan() || (found - expected).abs() <= within * (1.0 + expected.abs());
    assert!(is_same, "{what}: {found}, not {expected}");
}

fn cases() -> impl Iterator<Item = (String, Samples, Case)> {
    (0..32_u64).map(|number| {
        let has = |bit: u64| number >> bit & 1 == 1;
        let length = if has(0) { 3 } else { 1 };
        let mut samples = drawn(number + 100, length, has(1));
        // The last class has labels too.
        samples.labels[3][0] = CLASSES as i32 - 1;
        let mut draws = Draws::of(number, "test", "weights", 0, 0);
        let mut weights =
            |count: usize| (0..count).map(|_| draws.below(4) as f32 / 2.0).collect::<Vec<f32>>();
        let case = Case {
            ignored: has(2).then_some(0),
            tokens: has(3).then(|| weights(SAMPLES * length)),
            classes: (has(4) && !has(1)).then_some([0.25, 3.0, 1.0, 0.5]),
            // In one case of four no sample has a b.
            of_b: (number % 3 != 0)
                .then(|| if number % 4 == 1 { vec![0.0; SAMPLES] } else { weights(SAMPLES) }),
        };
        (format!("case {number}, {length} labels, w {:?}, {case:?}", samples.weights), samples, case)
    })
}

/// The gradient of a step is that of the sum of the means, here by differences of the reference.
#[test]
fn each_of_several_losses_is_divided_by_its_own_weights() {
    for (what, samples, case) in cases() {
        let data = data(&samples, &case);
        let mut trainer = builder(&case).replicas(1).build(&data.fields().unwrap()).unwrap();
        let batch: Batch = data.epoch(0).unwrap().next().unwrap().unwrap();
        let rows = 0..batch.len();
        let at = |scale: f64| total(means(&samples, &case, rows.clone(), scale, true));
        let gradient = (at(1.001) - at(0.999)) / 0.002;
        let step = trainer.step(&batch).unwrap();
        let scale = f64::from(trainer.tensor("scale").unwrap().unwrap()[0]);
        near(&format!("{what}: gradient"), (1.0 - scale) / f64::from(RATE), gradient, 2e-4);
        near(&format!("{what}: loss of a step"), step.now.loss, at(1.0), 1e-5);
        // What is held out, by the model as it is now, in two batches and without weights of classes.
        let evaluation = trainer.evaluate(&data).unwrap();
        let means = means(&samples, &case, 0..SAMPLES, scale, false);
        near(&format!("{what}: evaluation"), evaluation.loss, total(means), 1e-5);
        for (name, [sum, weight]) in ["tag loss", "b loss"].into_iter().zip(means) {
            near(&format!("{what}: {name}"), evaluation.metric(name).unwrap(), sum / weight, 1e-5);
        }
        // Weights of samples weigh metrics of their output, weights of labels and classes none.
        let (mut error, mut weights, mut all) = (0.0, 0.0, 0.0);
        for (sample, &[x, y]) in samples.numbers.iter().enumerate() {
            let own = case.of_b.as_ref().map_or(1.0, |w| f64::from(w[sample]));
            weights += samples.weight(sample) * own;
            error += samples.weight(sample) * own * (scale * f64::from(x) - f64::from(y)).abs();
            all += samples.weight(sample);
        }
        near(&what, evaluation.metric("b mean absolute error").unwrap(), error / weights, 1e-5);
        let tokens_are_samples = samples.labels[0].len() == 1 && case.tokens.is_some();
        if !tokens_are_samples {
            let [right] = [samples.metrics_of_tag(None)[0].1];
            near(
                &format!("{what}: accuracy, of {all}"),
                evaluation.metric("tag accuracy").unwrap(),
                right,
                1e-5,
            );
        }
    }
}

/// A digest of the state, the history and whether shards may run one after another.
fn trained(builder: Builder, data: &Loader) -> (String, String) {
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.fit(data, Some(data), 2).unwrap();
    (trainer.state_sha256().unwrap(), serde_json::to_string(trainer.history()).unwrap())
}

#[test]
fn several_losses_with_weights_give_the_same_bits_on_replicas_and_machines_and_after_a_resume() {
    let (_, samples, case) = cases().nth(15).unwrap();
    let data = data(&samples, &case).shuffle(3);
    let run = |replicas: usize| builder(&case).precision(Precision::Mixed).replicas(replicas).seed(4);
    let alone = trained(run(1), &data);
    for replicas in [2, 3, 7] {
        assert_eq!(trained(run(replicas), &data), alone, "{replicas} replicas");
    }
    for ended in on_ranks(3, Script::default(), |cluster: Cluster| trained(run(1).cluster(cluster), &data)) {
        assert_eq!(ended, alone);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut first = run(1).build(&data.fields().unwrap()).unwrap();
    first.save_to(Saving::new(dir.path())).unwrap();
    first.fit(&data, Some(&data), 1).unwrap();
    drop(first);
    let mut second = run(2).build(&data.fields().unwrap()).unwrap();
    second.save_to(Saving::new(dir.path())).unwrap();
    assert!(second.resume().unwrap().is_some());
    second.fit(&data, Some(&data), 2).unwrap();
    assert_eq!((second.state_sha256().unwrap(), serde_json::to_string(second.history()).unwrap()), alone);
}

/// Losses whose weights are the same still need no sum before the gradients.
#[test]
fn losses_with_the_same_weights_are_one_sum() {
    let (_, samples, _) = cases().nth(2).unwrap();
    let same = Case::default();
    let [plain, weighed] = [same, Case { of_b: Some(vec![0.5; SAMPLES]), ..Case::default() }].map(|case| {
        let data = data(&samples, &case);
        let trainer = builder(&case).replicas(1).build(&data.fields().unwrap()).unwrap();
        trainer.program(ProgramId::Train).segments()
    });
    assert!(plain < weighed, "{plain} segments and {weighed}");
}

/// A phase has losses of its own, which have weights of their own.
#[test]
fn losses_of_phases_have_weights_too() {
    let (_, samples, mut case) = cases().nth(13).unwrap();
    case.of_b = Some((0..SAMPLES).map(|at| (at % 3) as f32).collect());
    let data = data(&samples, &case);
    let entropy = CrossEntropy::new().ignore_index(case.ignored.unwrap());
    let by_phases = |replicas: usize| {
        let tag = Phase::new("tag").loss_of("tag", entropy, 1.0).optimizer(Sgd::new(RATE));
        let b = Phase::new("b").loss_of("b", MeanSquaredError, 0.5).optimizer(Sgd::new(RATE));
        let builder = Trainer::builder(told()).phase(tag).phase(b).global_batch(8).replicas(replicas);
        builder.sample_weights_of("tag", "tokens").sample_weights_of("b", "has_b")
    };
    let mut trainer = by_phases(1).build(&data.fields().unwrap()).unwrap();
    let batch: Batch = data.epoch(0).unwrap().next().unwrap().unwrap();
    let mut scale = 1.0;
    for part in 0..2 {
        let of_part = |scale: f64| {
            let mut means = means(&samples, &case, 0..batch.len(), scale, true);
            means[1 - part] = [0.0; 2];
            total(means)
        };
        let gradient = (of_part(scale + 0.001) - of_part(scale - 0.001)) / 0.002;
        trainer.step(&batch).unwrap();
        let new = f64::from(trainer.tensor("scale").unwrap().unwrap()[0]);
        near(&format!("phase {part}"), (scale - new) / f64::from(RATE), gradient, 2e-4);
        scale = new;
    }
    assert_eq!(trained(by_phases(3), &data), trained(by_phases(1), &data));
}

/// PyTorch's `CrossEntropyLoss(weight=...)` of tokens: the sum of w[y] l over the sum of w[y].
#[test]
fn the_only_loss_has_weights_of_tokens_and_of_their_classes_too() {
    let samples = drawn(7, 3, false);
    let classes = [0.25, 3.0, 1.0, 0.5];
    let tokens: Vec<f32> = (0..3 * SAMPLES).map(|at| (at % 3) as f32).collect();
    let case = Case { tokens: Some(tokens.clone()), classes: Some(classes), ..Case::default() };
    let data = data(&samples, &case);
    let builder = Trainer::builder(told())
        .loss_of("tag", CrossEntropy::new(), 1.0)
        .class_weights(classes)
        .sample_weights_of("tag", "tokens")
        .optimizer(Sgd::new(0.0))
        .global_batch(8)
        .replicas(1);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.fit(&data, Some(&data), 1).unwrap();
    let epoch = &trainer.history()[0];
    for (found, trains) in [(epoch.train.loss, true), (epoch.validation.as_ref().unwrap().loss, false)] {
        let [[sum, weight], _] = means(&samples, &case, 0..SAMPLES, 1.0, trains);
        near(&format!("trains {trains}"), found, sum / weight, 1e-5);
    }
    // A weight of a label that has several elements is that of their mean: [B, T] for [B, T, D].
    let x: Vec<f32> = (0..12).map(|at| at as f32).collect();
    let memory = Memory::new("x", [3, 2], Values::F32(x)).unwrap();
    let memory = memory.with("y", [3, 2], Values::F32(vec![0.0; 12])).unwrap();
    let memory = memory.with("mask", [3], Values::F32(vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0])).unwrap();
    let data = Loader::new(memory);
    let builder = Trainer::builder(super::same()).loss(MeanSquaredError).sample_weights("mask").replicas(1);
    let loss = builder.build(&data.fields().unwrap()).unwrap().evaluate(&data).unwrap().loss;
    let of = |a: f64| f64::midpoint(a * a, (a + 1.0) * (a + 1.0));
    near("mean of elements", loss, (of(0.0) + of(6.0) + of(8.0)) / 3.0, 1e-6);
}

#[test]
fn weights_that_fit_nothing_are_refused_by_name() {
    let samples = drawn(7, 3, false);
    let case = Case { tokens: Some(vec![1.0; 3 * SAMPLES]), ..Case::default() };
    let data = data(&samples, &case);
    let fields = data.fields().unwrap();
    let start = || Trainer::builder(told()).loss_of("tag", CrossEntropy::new(), 1.0).replicas(1);
    let refused = |builder: Builder| builder.build(&fields).err().expect("it is refused").to_string();
    for (builder, expected) in [
        (start().sample_weights_of("b", "tokens"), "no loss is of the output \"b\", only of tag"),
        (start().class_weights_of("b", [1.0; 2]), "no loss is of the output \"b\", only of tag"),
        (start().class_weights_of("tag", [1.0; 2]), "there are 2 weights for 4 classes"),
        (start().class_weights_of("tag", [0.0; 4]), "those of \"tag\": all are 0"),
        (start().sample_weights_of("tag", "none"), "field \"none\": expected f32, which weigh the samples"),
        (start().sample_weights_of("tag", "tag"), "got [B, 3] i32"),
        (start().sample_weights_of("tag", "logits"), "which weights of [3, 4] do not fit"),
        (
            Trainer::builder(Dense::new(3)).loss(Ctc).sample_weights("tokens"),
            "has no loss of each label, so weights of [3] a sample weigh nothing",
        ),
        (
            start().loss_of("b", BinaryCrossEntropyWithLogits, 1.0).class_weights([1.0; 4]),
            "class_weights_of sets those of an output",
        ),
    ] {
        let fields = match expected.starts_with("has no loss") {
            true => {
                let x = Memory::new("x", [3, 3], Values::F32(vec![0.0; 9])).unwrap();
                let x = x.with("y", [3], Values::I32(vec![1; 3])).unwrap();
                let x = x.with("tokens", [3], Values::F32(vec![1.0; 3])).unwrap();
                Some(Loader::new(x).fields().unwrap())
            }
            false => None,
        };
        let problem = match fields {
            Some(fields) => builder.build(&fields).err().expect("it is refused").to_string(),
            None => refused(builder),
        };
        assert!(problem.contains(expected), "{problem} instead of {expected}");
    }
    let mut negative = case.clone();
    negative.tokens.as_mut().unwrap()[4] = -1.0;
    let mut trainer = start().sample_weights_of("tag", "tokens").build(&fields).unwrap();
    let error = trainer.fit(&self::data(&samples, &negative), None, 1).unwrap_err().to_string();
    assert!(
        error.contains("sample 1") && error.contains("a weight in the field \"tokens\" is negative"),
        "{error}"
    );
}
