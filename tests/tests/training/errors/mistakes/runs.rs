//! Mistakes in settings, data and runs.

use std::sync::{Arc, Mutex};

use unisono::data::{Subset, split_fraction};
use unisono::{
    Adam, BatchNorm, BinaryAccuracy, BinaryCrossEntropyWithLogits, ConfusionMatrix, EarlyStopping, Flatten,
    GaussianNoise, Hinge, Huber, KlDivergence, Observer, Plateau, R2, ReduceOnPlateau, RmsProp, Softmax,
    TopKAccuracy,
};

use super::*;

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Returns all that is said while a trainer is built and trained.
pub fn run(builder: Builder, train: &Loader, validation: Option<&Loader>, epochs: u32) -> String {
    let notes = Notes::default();
    let build = builder.replicas(1).adapter("cpu").observer(notes.clone()).build(&train.fields().unwrap());
    let mut trainer = match build {
        Ok(trainer) => trainer,
        Err(error) => return error.to_string(),
    };
    let error = trainer.fit(train, validation, epochs).err().map(|error| error.to_string());
    let mut said = notes.0.lock().unwrap().clone();
    said.extend(trainer.notes().iter().cloned());
    said.extend(error);
    said.join("\n")
}

/// Returns a trainer of three classes with steps of 8 samples.
pub fn classes() -> Builder {
    Trainer::builder(Dense::new(3)).global_batch(8)
}

/// Returns 32 samples of four numbers with these labels, in the data's order.
pub fn labelled(label: impl Fn(i32) -> i32) -> Loader {
    let x = (0..32 * 4).map(|i| (i % 7) as f32 / 7.0).collect::<Vec<_>>();
    Loader::new(Memory::labelled(x, [4], (0..32).map(label).collect::<Vec<_>>()).unwrap())
}

/// Returns 16 samples of two numbers with targets.
pub fn targets(shape: &[usize], values: Values) -> Loader {
    let x = Memory::new("x", [2], Values::F32((0..32).map(|i| i as f32 / 32.0).collect())).unwrap();
    Loader::new(x.with("y", shape, values).unwrap())
}

/// What is said to a trainer of an optimizer.
pub fn optimizer(optimizer: impl Into<unisono::Chain>) -> String {
    run(classes().optimizer(optimizer), &labelled(|i| i % 3), None, 1)
}

/// What is said to a trainer of three logits with a loss or a metric.
pub fn with(build: impl FnOnce(Builder) -> Builder) -> String {
    run(build(classes()), &labelled(|i| i % 3), None, 1)
}

/// Mistakes in the settings of optimizers.
fn optimizers() -> Vec<Mistake> {
    let halved = || Schedule::cosine(0.1, 2);
    vec![
        ("clipping to nothing", optimizer(Sgd::new(0.1).clip_norm(0.0)), &["clip_norm is 0", "above 0"]),
        ("clipping values to nothing", optimizer(Sgd::new(0.1).clip_value(0.0)), &["clip_value is 0"]),
        (
            "a learning rate of 0",
            optimizer(AdamW::new(0.0)),
            &["adamw: the learning rate is 0", "no parameter"],
        ),
        ("momentum in percent", optimizer(Sgd::new(0.1).momentum(90.0)), &["momentum is 90", "[0, 1]"]),
        ("momentum above 1", optimizer(RmsProp::new(0.1).momentum(1.5)), &["rmsprop: momentum is 1.5"]),
        (
            "betas exchanged",
            optimizer(Adam::new(0.1).betas(0.999, 0.9)),
            &["adam: betas(0.999, 0.9)", "squares"],
        ),
        ("a beta of 1", optimizer(Adam::new(0.1).betas(0.9, 1.0)), &["beta2 is 1", "[0, 1)"]),
        ("averages of nothing", optimizer(Sgd::new(0.1).average_weights(0.0)), &["average_weights is 0"]),
        ("averages of the start", optimizer(Sgd::new(0.1).average_weights(1.0)), &["average_weights is 1"]),
        ("decay that grows", optimizer(AdamW::new(0.1).weight_decay(-0.1)), &["weight_decay is -0.1"]),
        (
            "a schedule of epochs",
            optimizer(Sgd::new(halved())),
            &["sgd: ", "is 0 from step 2 on", "4 steps", "the last 2 steps change nothing"],
        ),
        (
            "a schedule of another run",
            optimizer(Sgd::new(Schedule::cosine(0.1, 1000))),
            &["made for 1000 steps", "the run has 4 steps"],
        ),
        (
            "a warm-up longer than the run",
            optimizer(Sgd::new(Schedule::constant(0.1).warm_up(500))),
            &["the warm-up lasts 500 steps", "the run has 4 steps"],
        ),
        (
            "a schedule without steps",
            optimizer(Sgd::new(Schedule::cosine(0.1, 0))),
            &["a cosine over 0 steps"],
        ),
        ("a schedule that never changes", optimizer(Sgd::new(Schedule::step(0.1, 0, 0.5))), &["0 steps"]),
        (
            "a plateau that raises",
            with(|b| b.callback(ReduceOnPlateau::new(Plateau::lowest("loss").factor(2.0)))),
            &["factor 2", "[0, 1)"],
        ),
        (
            "a value that is not measured",
            with(|b| b.callback(EarlyStopping::highest("acc"))),
            &["\"acc\"", "loss"],
        ),
    ]
}

/// Mistakes in losses, metrics and targets.
fn losses() -> Vec<Mistake> {
    let i32s = |each: i32| Values::I32((0..16).map(|i| i % each).collect());
    let f32s = |n: usize| Values::F32((0..16 * n).map(|i| (i % 3) as f32).collect());
    let dense = |units: usize| Trainer::builder(Dense::new(units)).global_batch(8);
    let one = || dense(1).loss(BinaryCrossEntropyWithLogits);
    vec![
        (
            "one logit for classes",
            run(dense(1), &targets(&[], i32s(1)), None, 1),
            &["[B, 1]", "one logit", "Binary"],
        ),
        (
            "the accuracy of one logit",
            run(one().metric(Accuracy), &targets(&[], i32s(2)), None, 1),
            &["accuracy", "[B, 1] has one logit", "BinaryAccuracy"],
        ),
        (
            "two logits for a yes or no",
            run(dense(2).loss(BinaryCrossEntropyWithLogits), &targets(&[], i32s(2)), None, 1),
            &["binary cross-entropy", "[B, 2]", "[B] i32"],
        ),
        ("classes for a yes or no", run(one(), &targets(&[], i32s(3)), None, 1), &["target 2", "[0, 1]"]),
        (
            "minus one for no",
            run(one(), &targets(&[], Values::I32((0..16).map(|i| 2 * (i % 2) - 1).collect())), None, 1),
            &["target -1", "[0, 1]"],
        ),
        (
            "0 and 1 for a hinge",
            run(dense(1).loss(Hinge::default()), &targets(&[1], f32s(1)), None, 1),
            &["sample 0", "target 0 is not -1 or 1"],
        ),
        (
            "targets without an axis",
            run(dense(1).loss(MeanSquaredError), &targets(&[], f32s(1)), None, 1),
            &["mean squared error", "[B, 1]", "got [B]", "the shape [1]"],
        ),
        (
            "targets with an axis too many",
            run(dense(2).loss(MeanSquaredError), &targets(&[2, 1], f32s(2)), None, 1),
            &["[B, 2]", "got [B, 2, 1]", "reshape the output to [2, 1]"],
        ),
        ("labels from 1 on", run(classes(), &labelled(|i| i % 3 + 1), None, 1), &["label 3 is not in 0..3"]),
        ("one-hot labels", run(dense(3), &targets(&[3], f32s(3)), None, 1), &["CrossEntropy::probabilities"]),
        (
            "labels for probabilities",
            run(classes().loss(CrossEntropy::new().probabilities()), &labelled(|i| i % 3), None, 1),
            &["[B, 3]", "got [B] i32"],
        ),
        (
            "softmax twice",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(3)).add(Softmax)).global_batch(8),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["1 (softmax)", "takes logits", "leave the layer out"],
        ),
        (
            "smoothing in percent",
            with(|b| b.loss(CrossEntropy::new().label_smoothing(10.0))),
            &["smoothing 10"],
        ),
        ("a negative delta", run(dense(1).loss(Huber::new(-1.0)), &targets(&[1], f32s(1)), None, 1), &["-1"]),
        (
            "a divergence from labels",
            with(|b| b.loss(KlDivergence::new())),
            &["kl divergence", "[B, 3]", "got [B] i32"],
        ),
        ("the best 5 of 3", with(|b| b.metric(TopKAccuracy::new(5))), &["k = 5 is not in 1..=3"]),
        ("a regression's metric", with(|b| b.metric(R2)), &["r2", "[B, 3]"]),
        (
            "a yes or no of classes",
            with(|b| b.metric(BinaryAccuracy)),
            &["binary accuracy", "[B, 3]", "[B] i32"],
        ),
        ("a table of other classes", with(|b| b.metric(ConfusionMatrix::new(2))), &["confusion", "2", "3"]),
        ("a class weight too few", with(|b| b.class_weights([1.0, 2.0])), &["2", "3"]),
        ("a negative class weight", with(|b| b.class_weights([1.0, -2.0, 1.0])), &["-2", "negative"]),
        ("no such weights", with(|b| b.sample_weights("weights")), &["\"weights\"", "no such field"]),
    ]
}

/// Mistakes in data and in what is done with them.
fn data_and_runs() -> Vec<Mistake> {
    let good = || labelled(|i| i % 3);
    let lines = |loader: Loader| run(classes(), &loader, None, 1);
    let pictures = |values: Vec<f32>| {
        let labels: Vec<i32> = (0..8).map(|i| i % 3).collect();
        Loader::new(Memory::labelled(values, [1, 4, 4], labels).unwrap())
    };
    let flat = || Trainer::builder(Sequential::new().add(Flatten).add(Dense::new(3))).global_batch(8);
    let pixels = pictures((0..8 * 16).map(|i| (i * 37 % 256) as f32).collect());
    let [few, many] = split_fraction(Memory::labelled([0.5; 32], [1], [0; 32]).unwrap(), 0.25, 0).unwrap();
    let weights = |weight: f32| {
        let data = Memory::labelled([0.5; 32], [2], [0, 1].repeat(8)).unwrap();
        let weights = (0..16).map(|i| if i == 5 { weight } else { 1.0 }).collect();
        Loader::new(data.with("w", [], Values::F32(weights)).unwrap())
    };
    let broken = |bad: f32| {
        let y = (0..16).map(|i| if i == 11 { bad } else { 0.5 }).collect();
        let mean = Trainer::builder(Dense::new(1)).loss(MeanSquaredError).global_batch(8);
        run(mean, &targets(&[1], Values::F32(y)), None, 1)
    };
    vec![
        ("no epochs", run(classes(), &good(), None, 0), &["nothing to do", "0 are requested"]),
        (
            "a batch larger than the data",
            run(classes().global_batch(64), &good(), None, 1),
            &["64", "32 samples"],
        ),
        (
            "a loader's own batch",
            lines(good().batch(16)),
            &["batch size of 16 is ignored", "global batch of 8"],
        ),
        (
            "a batch that is always dropped",
            run(classes().global_batch(64), &good().drop_last(true), None, 1),
            &["drop_last", "64", "32"],
        ),
        ("sorted labels", lines(labelled(|i| i / 11)), &["labels \"y\"", "are 0", "Loader::shuffle"]),
        ("pixels as stored", run(flat(), &pixels, None, 1), &["\"x\"", "255"]),
        (
            "validation on what was trained on",
            {
                let data = good();
                run(classes(), &data, Some(&data), 1)
            },
            &["validation data are the training data", "validation_split"],
        ),
        (
            "validation and training exchanged",
            run(classes(), &Loader::new(few).shuffle(1), Some(&Loader::new(many)), 1),
            &["24 validation samples and 8 training samples", "training data first"],
        ),
        (
            "a share of everything",
            format!("{}", good().validation_split(1.0).unwrap_err()),
            &["1", "32 samples"],
        ),
        (
            "a share in percent",
            format!("{}", good().validation_split(20.0).unwrap_err()),
            &["20", "32 samples"],
        ),
        (
            "a split in percent",
            format!("{}", split_fraction(Memory::labelled([0.5], [1], [0]).unwrap(), 80.0, 0).unwrap_err()),
            &["80", "0 and 1"],
        ),
        (
            "an index from 1 on",
            format!("{}", Subset::new(Memory::labelled([0.5], [1], [0]).unwrap(), [1]).unwrap_err()),
            &["sample 1", "length is 1"],
        ),
        ("a negative weight of a sample", run(classes(), &weights(-1.0), None, 1), &["sample 5", "negative"]),
        ("a target that is no number", broken(f32::NAN), &["sample 11", "\"y\"", "NaN"]),
        ("a target that is infinite", broken(f32::INFINITY), &["sample 11", "\"y\"", "inf"]),
        (
            "no samples",
            format!(
                "{}",
                Loader::new(Memory::labelled([0.0; 0], [1], [0; 0]).unwrap()).fields().unwrap_err()
            ),
            &["no samples"],
        ),
        (
            "windows longer than the series",
            format!(
                "{}",
                Loader::new(Windows::new(Field::f32([4], [0.0; 4])).length(9)).fields().unwrap_err()
            ),
            &["9", "4"],
        ),
        (
            "windows that do not move",
            format!(
                "{}",
                Loader::new(Windows::new(Field::f32([4], [0.0; 4])).length(2).stride(0))
                    .fields()
                    .unwrap_err()
            ),
            &["Windows::stride", "at least 1"],
        ),
        ("everything dropped", layer("x", Dropout::new(1.0)), &["dropout", "rate is 1", "[0, 1)"]),
        ("negative noise", layer("x", GaussianNoise::new(-0.1)), &["gaussian_noise", "-0.1"]),
        (
            "a picture that is not flat",
            run(Trainer::builder(Dense::new(3)).global_batch(8), &pictures(vec![0.5; 8 * 16]), None, 1),
            &["[B, 1, 4, 3]", "got [B] i32"],
        ),
        (
            "all steps of a sequence for one label",
            run(
                Trainer::builder(Sequential::new().add(Lstm::new(4)).add(Dense::new(3))).global_batch(8),
                &{
                    let x = Values::F32((0..8 * 10).map(|i| i as f32 / 80.0).collect());
                    let labels = Values::I32((0..8).map(|i| i % 3).collect());
                    Loader::new(Memory::new("x", [5, 2], x).unwrap().with("y", [], labels).unwrap())
                },
                None,
                1,
            ),
            &["[B, 5, 3]", "got [B] i32", "`last` of a recurrent layer"],
        ),
        (
            "a batch norm's momentum in percent",
            layer("x", BatchNorm::new().momentum(99.0)),
            &["momentum is 99"],
        ),
        ("no accumulation", with(|b| b.gradient_accumulation(0)), &["accumulation", "0"]),
        ("no threads", failed_epoch(good().threads(1 << 20)), &["threads"]),
        ("rows in another order", shuffled_predictions(good().shuffle(1)), &["order"]),
    ]
}

/// Returns the error of an epoch that cannot begin.
fn failed_epoch(loader: Loader) -> String {
    loader.epoch(0).err().map(|error| error.to_string()).unwrap_or_default()
}

/// Returns what is said about predictions for a loader.
fn shuffled_predictions(loader: Loader) -> String {
    let notes = Notes::default();
    let build = classes().replicas(1).adapter("cpu").observer(notes.clone()).build(&loader.fields().unwrap());
    build.unwrap().predict(&loader).unwrap();
    notes.0.lock().unwrap().join("\n")
}

pub fn all() -> Vec<Mistake> {
    let mut all = optimizers();
    all.extend(losses());
    all.extend(data_and_runs());
    all
}
