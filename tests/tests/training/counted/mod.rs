//! What counts in a metric: what its own settings say, each sample with the weight that the data give it.
//! Where nothing was measured the number is NaN, and what decides by it passes over it.

mod reference;
mod weights;

use std::sync::{Arc, Mutex};

use reference::{CLASSES, Samples};
use unisono::data::{Loader, Memory, Values};
use unisono::{
    Accuracy, Auc, BestBy, BinaryAccuracy, Builder, ConfusionMatrix, CosineSimilarity, CrossEntropy, Dense,
    EarlyStopping, Evaluation, F1, FBeta, FromFn, Initializer, Iou, Layer, Loss, Matthews, MeanAbsoluteError,
    MeanSquaredError, Model, Observer, Outputs, Perplexity, PrecisionScore, R2, RecallScore,
    RootMeanSquaredError, Saving, Sgd, TopKAccuracy, Trainer, Type, Var,
};
use unisono_random::Draws;

/// The number of samples of a case. Batches of 8 make two of them.
const SAMPLES: usize = 11;

/// Returns samples of `length` labels each. Of the classes, the last is never true.
fn drawn(seed: u64, length: usize, is_weighted: bool) -> Samples {
    let mut draws = Draws::of(seed, "test", "counted", 0, 0);
    // With every other seed the last class is never predicted either.
    let last = if seed.is_multiple_of(2) { -9.0 } else { 0.0 };
    let mut logits = || {
        let mut logits = [0.0; CLASSES].map(|_: f32| draws.normal());
        logits[CLASSES - 1] += last;
        logits
    };
    let logits = (0..SAMPLES).map(|_| (0..length).map(|_| logits()).collect()).collect();
    let labels =
        (0..SAMPLES).map(|_| (0..length).map(|_| draws.below(CLASSES as u32 - 1) as i32).collect()).collect();
    let numbers = (0..SAMPLES).map(|_| [draws.normal(), f32::from(draws.chance(0.4))]).collect();
    let weights = is_weighted.then(|| (0..SAMPLES).map(|_| draws.below(4) as f32 / 2.0).collect());
    Samples { logits, labels, numbers, weights }
}

/// Returns the samples as data: what the outputs are to be, and what they are compared with.
fn loader(samples: &Samples) -> Loader {
    let length = samples.labels[0].len();
    let labels: &[usize] = if length == 1 { &[] } else { &[length] };
    let logits = samples.logits.concat().concat();
    let data = Memory::new("logits", [labels, &[CLASSES]].concat(), Values::F32(logits)).unwrap();
    let data = data.with("tag", labels.to_vec(), Values::I32(samples.labels.concat())).unwrap();
    let column = |at: usize| Values::F32(samples.numbers.iter().map(|x| x[at]).collect());
    let data = data.with("number", [1], column(0)).unwrap().with("b", [1], column(1)).unwrap();
    Loader::new(match &samples.weights {
        Some(weights) => data.with("w", [], Values::F32(weights.clone())).unwrap(),
        None => data,
    })
}

/// A model with two outputs, which are what the fields say.
fn told() -> Model {
    Model::new(|cx, x| {
        let scale = cx.parameter("scale", &[], Initializer::Ones);
        Outputs::new().with("tag", &(&x["logits"] * &scale)).with("b", &(&x["number"] * &scale))
    })
}

/// Measures every metric, those of classes with a label ignored.
fn measured(mut builder: Builder, ignored: Option<i32>) -> Builder {
    macro_rules! of_tag {
        ($($metric:expr),+ $(,)?) => {
            $(builder = match ignored {
                Some(label) => builder.metric_of("tag", $metric.ignore_index(label)),
                None => builder.metric_of("tag", $metric),
            };)+
        };
    }
    macro_rules! averages {
        ($($metric:ident $(. $beta:ident ($value:expr))?),+) => {
            $(of_tag!(
                $metric::macro_average(CLASSES)$(.$beta($value))?,
                $metric::micro_average(CLASSES)$(.$beta($value))?,
                $metric::weighted_average(CLASSES)$(.$beta($value))?,
                $metric::of_class(CLASSES, CLASSES - 1)$(.$beta($value))?,
            );)+
        };
    }
    of_tag!(Accuracy::new(), TopKAccuracy::new(2), Perplexity::new());
    of_tag!(Matthews::new(CLASSES), ConfusionMatrix::new(CLASSES));
    of_tag!(Auc::roc().one_vs_rest(CLASSES), Auc::pr().one_vs_rest(CLASSES));
    averages!(PrecisionScore, RecallScore, FBeta.beta(2.0), Iou);
    builder
        .metric_of("b", MeanSquaredError)
        .metric_of("b", MeanAbsoluteError)
        .metric_of("b", RootMeanSquaredError)
        .metric_of("b", R2)
        .metric_of("b", CosineSimilarity)
        .metric_of("b", BinaryAccuracy)
        .metric_of("b", PrecisionScore::binary())
        .metric_of("b", RecallScore::binary())
        .metric_of("b", F1::binary())
        .metric_of("b", Auc::roc())
        .metric_of("b", Auc::pr())
}

/// Compares all that was measured, each number once, with the reference.
fn compare(what: &str, found: &Evaluation, expected: &[(String, f64)]) {
    assert_eq!(found.metrics.len(), expected.len(), "{what}: {found:?}");
    let loss = ("loss".to_owned(), found.loss);
    let named = |name: &str| found.metric(name).unwrap_or_else(|| panic!("{what}: no {name} in {found:?}"));
    for (name, expected) in expected {
        let (found, far) = (named(name), (named(name) - expected).abs());
        let is_same = found.is_nan() && expected.is_nan() || far <= 1e-5 * (1.0 + expected.abs());
        assert!(is_same, "{what}: {name} is {found}, not {expected}");
    }
    assert!(!loss.1.is_nan(), "{what}");
}

#[test]
fn every_metric_counts_what_its_settings_and_the_weights_of_samples_say() {
    let classes = [0.25, 3.0, 1.0, 0.5];
    for case in 0..32_u64 {
        let has = |bit: u64| case >> bit & 1 == 1;
        let (length, is_weighted) = (if has(0) { 3 } else { 1 }, has(1));
        let [by_loss, by_metrics] = [has(2), has(3)].map(|ignores| ignores.then_some(0));
        // Weights of classes are for one label a sample. Other cases have a loss of each output.
        let classes = (has(4) && length == 1).then_some(classes);
        let is_double = by_loss.is_none() && classes.is_none() && !has(4);
        let samples = drawn(case + 1, length, is_weighted);
        let what = format!(
            "case {case}: {length} labels, weights {is_weighted}, the loss ignores {by_loss:?}, metrics ignore \
             {by_metrics:?}, classes {classes:?}, two losses {is_double}"
        );
        let entropy = CrossEntropy::new();
        let entropy = by_loss.map_or(entropy, |label| entropy.ignore_index(label));
        let mut builder = Trainer::builder(told()).loss_of("tag", entropy, 1.0);
        if is_double {
            builder = builder.loss_of("b", MeanSquaredError, 0.5);
        }
        if let Some(weights) = classes {
            builder = builder.class_weights(weights);
        }
        let builder = measured(builder, by_metrics).optimizer(Sgd::new(0.0)).global_batch(8).replicas(1);
        let data = loader(&samples);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, Some(&data), 1).unwrap();
        let prefixed = |output: &'static str| move |(name, x): (String, f64)| (format!("{output} {name}"), x);
        let of_tag = samples.metrics_of_tag(by_metrics).into_iter().map(prefixed("tag"));
        let mut expected: Vec<(String, f64)> =
            of_tag.chain(samples.metrics_of_b().into_iter().map(prefixed("b"))).collect();
        let [tag, b] = samples.losses(by_loss, None);
        if is_double {
            expected.extend([("tag loss".to_owned(), tag), ("b loss".to_owned(), b)]);
        }
        let epoch = &trainer.history()[0];
        let validation = epoch.validation.as_ref().unwrap();
        compare(&format!("{what}, in training"), &epoch.train, &expected);
        compare(&format!("{what}, held out"), validation, &expected);
        let half = if is_double { 0.5 * b } else { 0.0 };
        let trained = samples.losses(by_loss, classes)[0] + half;
        for (found, expected) in [(epoch.train.loss, trained), (validation.loss, tag + half)] {
            assert!((found - expected).abs() <= 1e-5 * expected, "{what}: loss {found}, not {expected}");
        }
        let evaluation = trainer.evaluate(&data).unwrap();
        let table = evaluation.table("tag confusion matrix").unwrap();
        assert_eq!(
            table.rows().flatten().copied().collect::<Vec<_>>(),
            samples.confusion(by_metrics),
            "{what}"
        );
    }
}

/// A layer that gives its input.
fn same() -> impl Layer {
    FromFn::new("same", |cx: &mut unisono::Context, x: &Var| {
        x * cx.parameter("scale", &[], Initializer::Ones)
    })
}

/// Returns logits of which the largest are those of classes.
fn logits(classes: &[i32]) -> Vec<f32> {
    let of = |&class: &i32| (0..3).map(move |other| f32::from(u8::from(other == class)));
    classes.iter().flat_map(of).collect()
}

/// Returns data whose largest logits are those of `predicted`, for labels of the shape `dims`.
fn told_labels(predicted: &[i32], labels: &[i32], dims: &[usize]) -> Loader {
    let data = Memory::new("x", [dims, &[3]].concat(), Values::F32(logits(predicted))).unwrap();
    Loader::new(data.with("y", dims.to_vec(), Values::I32(labels.to_vec())).unwrap())
}

fn accuracy(loss: impl Loss + 'static, metric: Accuracy, data: &Loader) -> f64 {
    let builder = Trainer::builder(same()).loss(loss).metric(metric).global_batch(4).replicas(1);
    builder.build(&data.fields().unwrap()).unwrap().evaluate(data).unwrap().metric("accuracy").unwrap()
}

/// The mean over a sample's labels, where the sample counts as often as it has labels other than 0.
struct Masked;

impl Loss for Masked {
    fn name(&self) -> &str {
        "masked"
    }
    fn target(&self, output: &Type) -> Result<Type, String> {
        CrossEntropy::new().target(output)
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        CrossEntropy::new().per_sample(output, target)
    }
    fn weight(&self, target: &Var) -> Option<Var> {
        let zero = target.tape().constant(0.0);
        Some(target.to_f32().greater(&zero).flatten().sum(&[-1]))
    }
}

#[test]
fn an_ignored_label_counts_nowhere_whatever_the_loss_does() {
    let ignoring = Accuracy::new().ignore_index(0);
    let perfect = told_labels(&[0, 1, 0, 2], &[0, 1, 0, 2], &[]);
    assert_eq!(accuracy(CrossEntropy::new(), ignoring, &perfect), 1.0);
    assert_eq!(accuracy(CrossEntropy::new().ignore_index(0), ignoring, &perfect), 1.0);
    let sequences = [1, 2, 0, 1, 1, 0, 0, 0, 0];
    let sequences = told_labels(&sequences, &sequences, &[3]);
    assert_eq!(accuracy(CrossEntropy::new(), ignoring, &sequences), 1.0);
    // Of four labels that count one is predicted.
    let labels = told_labels(&[1, 0, 0, 2, 2, 1], &[1, 2, 0, 1, 1, 0], &[2]);
    for accuracy in [accuracy(Masked, ignoring, &labels), accuracy(CrossEntropy::new(), ignoring, &labels)] {
        assert_eq!(accuracy, 0.25);
    }
}

/// Two of ten samples have a label. The errors of the other output are 0 to 9.
#[test]
fn labels_that_the_loss_of_an_output_ignores_do_not_weigh_metrics_of_another() {
    let labels = (0..10).map(|at| if at < 2 { vec![1] } else { vec![-1] }).collect();
    let numbers = (0..10).map(|at| [at as f32, 0.0]).collect();
    let data = loader(&Samples { logits: vec![vec![[0.0; CLASSES]]; 10], labels, numbers, weights: None });
    let builder = Trainer::builder(told())
        .loss_of("tag", CrossEntropy::new().ignore_index(-1), 1.0)
        .metric_of("b", MeanAbsoluteError)
        .metric_of("b", RootMeanSquaredError);
    let mut trainer = builder.global_batch(10).replicas(1).build(&data.fields().unwrap()).unwrap();
    let measured = trainer.evaluate(&data).unwrap();
    assert_eq!(measured.metric("b mean absolute error"), Some(4.5));
    assert!((measured.metric("b root mean squared error").unwrap() - 28.5_f64.sqrt()).abs() < 1e-6);
}

/// Keeps notes.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Returns samples of one feature, with labels and weights.
fn one_feature(labels: &[i32], weights: &[f32]) -> Loader {
    let x: Vec<f32> = (0..labels.len()).map(|at| at as f32 - 1.5).collect();
    let data = Memory::labelled(x, [1], labels.to_vec()).unwrap();
    Loader::new(data.with("w", [], Values::F32(weights.to_vec())).unwrap())
}

/// Returns a builder with metrics of each reduction that is a quotient.
fn classifier(notes: &Notes) -> Builder {
    Trainer::builder(Dense::new(2))
        .loss(CrossEntropy::new().ignore_index(-1))
        .metric(Accuracy)
        .metric(TopKAccuracy::new(1).ignore_index(-1))
        .metric(Perplexity::new().ignore_index(-1))
        .metric(F1::macro_average(2).ignore_index(-1))
        .metric(F1::micro_average(2).ignore_index(-1))
        .metric(F1::weighted_average(2).ignore_index(-1))
        .metric(RecallScore::of_class(2, 1).ignore_index(-1))
        .metric(Matthews::new(2).ignore_index(-1))
        .metric(Auc::pr().one_vs_rest(2).ignore_index(-1))
        .optimizer(Sgd::new(0.1))
        .global_batch(4)
        .replicas(1)
        .observer(notes.clone())
}

fn all_nan(evaluation: &Evaluation, but: &[&str]) {
    assert!(evaluation.loss.is_nan(), "{evaluation:?}");
    for (name, value) in &evaluation.metrics {
        assert!(value.is_nan() || but.contains(&&**name), "{name}: {value}");
    }
}

#[test]
fn what_nothing_was_measured_for_is_nan_and_is_never_the_best() {
    let (train, notes) = (one_feature(&[0, 1, 0, 1], &[1.0; 4]), Notes::default());
    let ignored = one_feature(&[-1; 4], &[1.0; 4]);
    let weightless = one_feature(&[0, 1, 0, 1], &[0.0; 4]);
    let dir = tempfile::tempdir().unwrap();
    let builder = classifier(&notes).callback(EarlyStopping::lowest("loss").patience(1));
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.save_to(Saving::new(dir.path()).keep_best(BestBy::Lowest("loss".into()))).unwrap();
    // The accuracy that ignores no label counts them as wrong.
    trainer.fit(&train, Some(&ignored), 3).unwrap();
    for epoch in trainer.history() {
        all_nan(epoch.validation.as_ref().unwrap(), &["accuracy"]);
        assert!(epoch.train.loss.is_finite());
    }
    assert_eq!(trainer.best().unwrap(), None);
    trainer.fit(&train, Some(&weightless), 6).unwrap();
    assert_eq!((trainer.history().len(), trainer.stopped()), (6, None), "no epoch was judged");
    all_nan(trainer.history()[5].validation.as_ref().unwrap(), &[]);
    assert_eq!(trainer.best().unwrap(), None);
    trainer.fit(&train, Some(&train), 7).unwrap();
    assert_eq!(trainer.best().unwrap().unwrap().0, 7);
    trainer.fit(&train, Some(&weightless), 8).unwrap();
    assert_eq!(trainer.best().unwrap().unwrap().0, 7);
    let notes = notes.0.lock().unwrap();
    let told: Vec<&String> = notes.iter().filter(|note| note.contains("has measured nothing")).collect();
    assert_eq!(told.len(), 2, "{notes:?}");
    assert!(
        told[0].starts_with("note: an evaluation has measured nothing for loss, top-1 accuracy, perplexity")
    );
    assert!(told[1].contains("loss, accuracy, top-1 accuracy"), "{told:?}");
}

#[test]
fn an_epoch_of_training_without_weights_has_measured_nothing() {
    let (weightless, notes) = (one_feature(&[0, 1, 0, 1], &[0.0; 4]), Notes::default());
    let mut trainer = classifier(&notes).build(&weightless.fields().unwrap()).unwrap();
    trainer.fit(&weightless, None, 1).unwrap();
    all_nan(&trainer.history()[0].train, &[]);
    assert!(notes.0.lock().unwrap().iter().any(|note| note.contains("an epoch of training has measured")));
    // A step says so too, and a history of such numbers comes back.
    let json = serde_json::to_string(trainer.history()).unwrap();
    assert!(json.contains(r#""loss":"NaN""#), "{json}");
}
