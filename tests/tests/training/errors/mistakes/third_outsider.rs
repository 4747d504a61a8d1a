//! Mistakes that a third new user made in a trial, and that nothing told of then, beside programs without
//! them.

use std::path::Path;

use unisono::data::{Batch, Csv, Per, Statistics, normalize};
use unisono::{BestBy, BinaryAccuracy, Dice, Embedding, F1, Flatten, FromFn, Saving, Tanh};

use super::runs::{classes, labelled, optimizer, run, targets};
use super::*;

/// Mistakes in splits, metrics, optimizers, files and shapes.
pub fn all() -> Vec<Mistake> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    vec![
        (
            "a class that is in the validation data alone",
            run(classes().global_batch(32), &different(0..2), Some(&different(0..3)), 2),
            &["of classes that training has not seen, such as 2", "validation_split"],
        ),
        ("statistics of data before they are split", split(false), &["statistics of 40 samples", "have 30"]),
        (
            "training on all, and on what is held out too",
            split_and_all(),
            &["have samples of the training data"],
        ),
        (
            "numbers of lines as features",
            numbered(folder, "id"),
            &["\"id\" counts the lines from 100", "leave it out"],
        ),
        ("windows that are cut by hand", cut(1), &["samples overlap", "Windows::rows"]),
        (
            "numbers as probabilities",
            run(of_one(None).loss(Dice::new().probabilities()), &yes_or_no(), None, 1),
            &["dice takes probabilities", "dense layer", "Sigmoid"],
        ),
        (
            "a threshold of probabilities for logits",
            run(
                of_one(None).loss(MeanSquaredError).metric(F1::binary().probabilities()),
                &yes_or_no(),
                None,
                1,
            ),
            &["f1 takes probabilities", "dense layer", "leave out probabilities()"],
        ),
        (
            "an accuracy of logits for a squared error",
            run(of_one(None).loss(MeanSquaredError).metric(BinaryAccuracy), &yes_or_no(), None, 1),
            &["counts outputs above 0", "BinaryCrossEntropyWithLogits"],
        ),
        (
            "tanh before targets beyond 1",
            run(
                of_one(Some(Tanh)).loss(MeanSquaredError),
                &targets(&[1], Values::F32(vec![5.0; 16])),
                None,
                1,
            ),
            &["is a tanh", "have 5", "cannot reach"],
        ),
        (
            "a decay that is too large",
            optimizer(Sgd::new(0.1).weight_decay(1.0)),
            &["sgd: a weight decay of 1", "0.1 is usual"],
        ),
        ("the weights of a run instead of the run", weights_of_run(folder), &["Trainer::resume goes on"]),
        (
            "an id beyond its table",
            run(
                Trainer::builder(Sequential::new().add(Embedding::new(3, 4)).add(Flatten).add(Dense::new(2))),
                &ids(),
                None,
                1,
            ),
            &["id 3", "not in 0..3", "one more than the largest id"],
        ),
        (
            "labels for targets that are probabilities",
            run(classes().loss(CrossEntropy::new().probabilities()), &labelled(|i| i % 3), None, 1),
            &["[B, 3]", "[B] i32", "without probabilities()", "one_hot"],
        ),
        (
            "classes for a squared error",
            run(classes().loss(MeanSquaredError), &labelled(|i| i % 3), None, 1),
            &["[B, 3]", "[B] i32", "CrossEntropy takes these"],
        ),
        (
            "a rate that is far too high",
            run(of_one(None).loss(MeanSquaredError).optimizer(Sgd::new(1e20)), &varied(), None, 9),
            &["is not finite", "steps before it were finite", "smaller learning rate"],
        ),
        (
            "a squared error that grows",
            run(of_one(None).loss(MeanSquaredError).optimizer(Sgd::new(0.05)), &varied(), None, 4),
            &["mean squared error is", "that of a constant guess is", "smaller learning rate"],
        ),
        (
            "a rate that is far too low",
            run(far_from_labels().optimizer(Sgd::new(1e-9)), &labelled(|i| i * i % 3), None, 4),
            &["hardly changes", "too small"],
        ),
        ("a sample without the axis of the batch", alone(), &["first axis counts samples", "[1, 4]"]),
        (
            "fewer samples than replicas",
            idle(3, None),
            &["1 of 4 replicas have nothing to do: a step has 3 shards", "Builder::global_batch"],
        ),
        ("fewer shards than replicas", idle(16, Some(2)), &["a step has 2 shards", "Builder::shards(4)"]),
        (
            "parameters that are frozen before they are loaded",
            run(
                classes().optimizer(Sgd::new(0.1).freeze(|name| name == "bias")),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["frozen at their initial values", ": bias;", "load_model"],
        ),
        (
            "words that are padded before attention",
            padded(),
            &["end in zeros", "1 (transformer_block) reads", "masked()"],
        ),
        (
            "the best checkpoint without validation",
            kept_best(folder),
            &["keep_best compares training metrics"],
        ),
        ("a batch as it is stored", batch_as_stored(), &["in a batch of the prediction", "normalize"]),
    ]
}

#[test]
fn what_is_right_in_a_split_or_a_metric_is_not_told() {
    let folder = tempfile::tempdir().unwrap();
    for (what, said, part) in [
        ("all classes in both", run(classes(), &different(0..3), Some(&different(0..3)), 2), "not seen"),
        ("statistics of the training part", split(true), "statistics of"),
        ("a split", split(true), "have samples of the training data"),
        ("a time", numbered(folder.path(), "area"), "counts the lines"),
        ("windows that share nothing", cut(8), "samples overlap"),
        ("a small decay", optimizer(Sgd::new(0.1).weight_decay(0.01)), "weight decay"),
    ] {
        assert!(!said.contains(part), "{what}: {said}");
    }
}

/// Returns 40 samples that all differ, of some classes in turn.
fn different(classes: std::ops::Range<i32>) -> Loader {
    let x = (0..160).map(|i| (i * i % 37) as f32 / 37.0 + i as f32).collect::<Vec<_>>();
    let classes: Vec<i32> = classes.cycle().take(40).collect();
    let first = classes.iter().max().map_or(0.0, |most| *most as f32);
    let x = x.into_iter().map(|x| x / 160.0 + first / 1000.0).collect::<Vec<_>>();
    Loader::new(Memory::labelled(x, [4], classes).unwrap())
}

/// What is said to data that are normalized before or behind their split.
fn split(behind: bool) -> String {
    let data = different(0..3);
    let by = |data: Loader, of: &Loader| {
        let statistics = Statistics::of(of.source(), "x", Per::Element, 1).unwrap();
        data.try_map("normalize", normalize("x", &statistics))
    };
    let (train, validation) = match behind {
        true => {
            let (train, validation) = data.validation_split(0.25).unwrap();
            (by(train.clone(), &train), by(validation, &train))
        }
        false => by(data.clone(), &data).validation_split(0.25).unwrap(),
    };
    run(classes(), &train, Some(&validation), 1)
}

fn split_and_all() -> String {
    let data = different(0..3).shuffle(1);
    let (_, validation) = data.validation_split(0.25).unwrap();
    run(classes(), &data, Some(&validation), 1)
}

/// What is said to a table whose column of a name counts from 100.
fn numbered(folder: &Path, counted: &str) -> String {
    let path = folder.join("numbered.csv");
    let lines = (0..16).map(|i| format!("{},{},{}\n", 100 + i, i * i % 7, i % 5)).collect::<String>();
    std::fs::write(&path, format!("{counted},rooms,price\n{lines}")).unwrap();
    let chosen = if counted == "id" { "id" } else { "rooms" };
    let data = Csv::new(&path).numbers([chosen]).target("price").read().unwrap();
    run(of_one(None).loss(MeanSquaredError), &Loader::new(data), None, 1)
}

/// Returns the notes on a random split of windows of 8 steps. A window begins every `every` steps.
fn cut(every: usize) -> String {
    let series: Vec<f32> = (0..400).map(|i| (i * i % 31) as f32).collect();
    let windows: Vec<f32> = (0..40).flat_map(|i| series[i * every..][..8].to_vec()).collect();
    let x = Memory::new("x", [8, 1], Values::F32(windows)).unwrap();
    let data = x.with("y", [1], Values::F32((0..40).map(|i| series[i * every + 8]).collect())).unwrap();
    let (train, validation) = Loader::new(data).validation_split(0.25).unwrap();
    let model = Sequential::new().add(Lstm::new(4).last()).add(Dense::new(1));
    run(Trainer::builder(model).loss(MeanSquaredError).global_batch(8), &train, Some(&validation), 1)
}

/// Returns a trainer of one number.
fn of_one(behind: Option<Tanh>) -> Builder {
    let model = Sequential::new().add(Dense::new(1));
    let model = match behind {
        Some(tanh) => model.add(tanh),
        None => model,
    };
    Trainer::builder(model).global_batch(8)
}

/// Returns a trainer of three classes whose first loss is above that of a guess.
fn far_from_labels() -> Builder {
    let model = Dense::new(3).initializer(Initializer::Normal(3.0));
    Trainer::builder(model).global_batch(8)
}

fn yes_or_no() -> Loader {
    targets(&[1], Values::F32([0.0, 1.0, 1.0, 0.0].repeat(4)))
}

fn varied() -> Loader {
    let x = Memory::new("x", [2], Values::F32((0..64).map(|i| (i % 7) as f32).collect())).unwrap();
    Loader::new(x.with("y", [1], Values::F32((0..32).map(|i| (i % 5) as f32).collect())).unwrap())
}

fn ids() -> Loader {
    let x = Memory::new("x", [4], Values::I32((0..64).map(|i| i % 4).collect())).unwrap();
    Loader::new(x.with("y", [], Values::I32([0, 1].repeat(8))).unwrap())
}

fn weights_of_run(folder: &Path) -> String {
    let (dir, train) = (folder.join("run"), labelled(|i| i % 3));
    let built = || classes().replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
    let mut first = built();
    first.save_to(Saving::new(&dir)).unwrap();
    first.fit(&train, None, 1).unwrap();
    first.export(dir.join("model.safetensors"), unisono::checkpoint::WeightPrecision::F32).unwrap();
    let mut second = built();
    second.load_model(&dir, &unisono::checkpoint::Plan::new()).unwrap();
    second.notes().join("\n")
}

fn padded() -> String {
    let ids = (0..16 * 6).map(|i| if i % 6 < 2 + i / 6 % 3 { 1 + i * i % 7 } else { 0 }).collect();
    let data = Memory::new("x", [6], Values::I32(ids)).unwrap();
    let data = Loader::new(data.with("y", [], Values::I32([0, 1, 1, 0].repeat(4))).unwrap());
    let mean = FromFn::new("mean", |_, x: &Var| x.mean(&[-2]));
    let model = Sequential::new().add(Embedding::new(8, 4)).add(TransformerBlock::new(2)).add(mean);
    run(Trainer::builder(model.add(Dense::new(2))).global_batch(8), &data, None, 1)
}

fn kept_best(folder: &Path) -> String {
    let train = labelled(|i| i % 3);
    let mut trainer = classes().replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
    trainer.save_to(Saving::new(folder.join("best")).keep_best(BestBy::Lowest("loss".into()))).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    trainer.notes().join("\n")
}

/// Returns a trainer that has seen numbers near 0.
fn fitted() -> Trainer {
    let train = labelled(|i| i % 3);
    let mut trainer = classes().replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    trainer
}

fn alone() -> String {
    let batch = Batch::of([("x", Field::f32([4], [0.5; 4]))]).unwrap();
    fitted().predict_batch(&batch).unwrap_err().to_string()
}

fn batch_as_stored() -> String {
    let values: Vec<f32> = (0..32).map(|i| (i * 7 % 32) as f32 * 8.0).collect();
    let batch = Batch::of([("x", Field::f32([8, 4], values))]).unwrap();
    let mut trainer = fitted();
    trainer.predict_batch(&batch).unwrap();
    trainer.notes().join("\n")
}

/// What is said to four replicas.
fn idle(global_batch: usize, shards: Option<usize>) -> String {
    let builder = Trainer::builder(Dense::new(3)).global_batch(global_batch).replicas(4).adapter("cpu");
    let builder = match shards {
        Some(shards) => builder.shards(shards),
        None => builder,
    };
    builder.build(&labelled(|i| i % 3).fields().unwrap()).unwrap().notes().join("\n")
}
