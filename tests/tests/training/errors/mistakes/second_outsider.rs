//! Mistakes that a second new user made in a trial, and that nothing told of then, beside programs without
//! them.

use std::path::Path;

use unisono::checkpoint::WeightPrecision;
use unisono::data::{Per, Pretrained, Statistics, augment, channels_first, normalize, preprocess};
use unisono::{BinaryCrossEntropyWithLogits, Embedding, Flatten, Predictor, Relu};

use super::runs::{classes, labelled, run};
use super::*;

/// Mistakes in transforms, predictions, and models of two parts.
pub fn all() -> Vec<Mistake> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    vec![
        (
            "a flip of the picture alone",
            segmented(|data| data.try_map("flip", augment::flip_horizontal("x", 0.5))),
            &["map 'flip' moves the pixels of \"x\" and leaves those of \"y\"", "moves them alike"],
        ),
        (
            "a picture and its mask that are turned apart",
            segmented(|data| {
                let turned = data.try_map("turn", augment::rotation("x", 10.0));
                turned.try_map("turn too", augment::rotation("y", 10.0))
            }),
            &["map 'turn' moves the pixels of \"x\"", "moves them alike"],
        ),
        (
            "validation data normalized by their own statistics",
            normalized(0, 3),
            &["the evaluation scales \"x\" by other numbers", "Statistics of the training data"],
        ),
        ("a field that is normalized twice", normalized_twice(), &["'again' scales \"x\"", "once is enough"]),
        (
            "a prediction of pixels as they are stored",
            predicted(folder, |data| data),
            &["in a batch of a prediction", "in the training", "transforms of the training data"],
        ),
        (
            "a generator that its critic trains",
            of_two_parts(false, false),
            &["\"fake\" and \"fooled\" are one value", "both losses train", "detach()"],
        ),
        (
            "a generator that a frozen critic trains, and the critic's loss too",
            of_two_parts(false, true),
            &["\"fake\" and \"fooled\" are one value", "both losses train generator.", "detach()"],
        ),
        (
            "two dense layers without an activation",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(8)).add(Dense::new(3))).global_batch(8),
                &labelled(|i| i * i % 3),
                None,
                1,
            ),
            &["1: there is no activation behind 0", "one linear map"],
        ),
        (
            "labels that rise",
            run(classes().global_batch(32), &labelled(|i| i / 11), None, 1),
            &["rise from 0 to 2", "Loader::shuffle"],
        ),
        (
            "labels that are counted from 1",
            run(
                Trainer::builder(Dense::new(4)).global_batch(32),
                &labelled(|i| 1 + i % 3).shuffle(1),
                None,
                1,
            ),
            &["no label \"y\" of 0", "4 classes, which count from 0"],
        ),
        ("pixels that are divided twice", dark(), &["the values of \"x\" are at most 0.0039", "once"]),
        ("words that are padded by hand", padded(), &["end in zeros", "1 (gru) reads these too", "mask"]),
        ("an export before the training", exported(folder), &["no step was made, and none were loaded"]),
    ]
}

#[test]
fn what_is_right_is_not_taken_for_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let alike = segmented(|data| data.try_map("flip", augment::flip_horizontal(["x", "y"], 0.5)));
    let cut = segmented(|data| data.try_map("cut out", augment::cutout("x", 2, 0.0)));
    let unit = |data: Loader| data.try_map("unit", preprocess("x", Pretrained::Unit));
    let narrow = Sequential::new().add(Dense::new(2)).add(Dense::new(3));
    for (what, said, part) in [
        ("a flip of both", alike, "moves them alike"),
        ("a square that is cut out", cut, "moves them alike"),
        ("the training's statistics for both", normalized(0, 0), "other numbers"),
        ("the training's transforms for a prediction", predicted(folder.path(), unit), "of a prediction"),
        ("a critic and a generator apart", of_two_parts(true, true), "are one value"),
        (
            "a narrow layer",
            run(Trainer::builder(narrow).global_batch(8), &labelled(|i| i * i % 3), None, 1),
            "one linear map",
        ),
    ] {
        assert!(!said.contains(part), "{what}: {said}");
    }
}

/// What is said to 16 pictures with a mask of two classes and some transforms.
fn segmented(with: impl FnOnce(Loader) -> Loader) -> String {
    let values = (0..16 * 64).map(|i| (i % 7) as f32 / 7.0).collect();
    let pictures = Memory::new("x", [8, 8, 1], Values::F32(values)).unwrap();
    let masks = Values::I32((0..16 * 64).map(|i| i * i % 2).collect());
    let data = with(Loader::new(pictures.with("y", [8, 8], masks).unwrap())).shuffle(1);
    let each = FromFn::new("each pixel", |cx, x| {
        let classes = cx.apply("classes", &Conv2d::new(2, 1), &x.reshape(&[1, 8, 8]));
        classes.permute(&[1, 2, 0])
    });
    run(Trainer::builder(each).global_batch(8), &data, None, 1)
}

/// Numbers that begin at some place.
fn numbers(first: usize) -> Loader {
    let values = (0..32 * 4).map(|i| ((i * 7 + first) % 9) as f32).collect::<Vec<_>>();
    Loader::new(Memory::labelled(values, [4], (0..32).map(|i| i * i % 3).collect::<Vec<_>>()).unwrap())
}

/// Normalizes numbers by the statistics of others.
fn by_statistics_of(data: Loader, others: usize) -> Loader {
    let statistics = Statistics::of(numbers(others).limit_batches(1).source(), "x", Per::All, 1).unwrap();
    let mut statistics = statistics;
    statistics.mean[0] += others as f64;
    data.try_map("normalize", normalize("x", &statistics))
}

fn normalized(training: usize, validation: usize) -> String {
    let train = by_statistics_of(numbers(0), training);
    run(classes(), &train, Some(&by_statistics_of(numbers(3), validation)), 1)
}

fn normalized_twice() -> String {
    let statistics = Statistics::of(numbers(0).source(), "x", Per::All, 1).unwrap();
    let once = numbers(0).try_map("once", normalize("x", &statistics));
    run(classes(), &once.try_map("again", normalize("x", &statistics)), None, 1)
}

/// Sixteen pictures of three classes, of pixels as they are stored.
fn pixels(more: usize) -> Loader {
    let values = (0..16 * 64).map(|i| ((i * 31 + more) % 256) as f32).collect::<Vec<_>>();
    Loader::new(Memory::labelled(values, [8, 8, 1], (0..16).map(|i| i * i % 3).collect::<Vec<_>>()).unwrap())
}

/// What a predictor notes of pixels after the training on values from 0 to 1.
fn predicted(folder: &Path, with: impl FnOnce(Loader) -> Loader) -> String {
    let unit = pixels(0).try_map("unit", preprocess("x", Pretrained::Unit));
    let train = unit.try_map("channels first", channels_first("x"));
    let model = Sequential::new().add(Conv2d::new(2, 3)).add(Relu).add(Flatten).add(Dense::new(3));
    let builder = Trainer::builder(model).global_batch(8).replicas(1).adapter("cpu");
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    let path = folder.join("pixels.safetensors");
    trainer.export(&path, WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::builder().adapter("cpu").replicas(1).open(&path).unwrap();
    let data = with(pixels(5)).try_map("channels first", channels_first("x"));
    predictor.predict(&data).unwrap();
    predictor.report().notes.join("\n")
}

/// What is said to a generator and a critic that one optimizer trains.
fn of_two_parts(detached: bool, frozen: bool) -> String {
    let values = |value: f32| Values::F32(vec![value; 16]);
    let data = Memory::new("point", [2], Values::F32((0..32).map(|i| i as f32 / 32.0).collect())).unwrap();
    let data = data.with("noise", [4], Values::F32((0..64).map(|i| (i % 5) as f32).collect())).unwrap();
    let data = data.with("real", [1], values(1.0)).unwrap().with("fake", [1], values(0.0)).unwrap();
    let data = data.with("fooled", [1], values(1.0)).unwrap();
    let (generator, critic) =
        (Dense::new(2), Sequential::new().add(Dense::new(4)).add(Relu).add(Dense::new(1)));
    let model = Model::new(move |cx, x| {
        let made = cx.apply("generator", &generator, &x["noise"]);
        let seen = if detached { made.detach() } else { made.clone() };
        let real = cx.apply("critic", &critic, &x["point"]);
        let fake = cx.apply("critic", &critic, &seen);
        let fooled = if frozen { cx.apply_frozen("critic", &critic, &made) } else { fake.clone() };
        Outputs::new().with("real", &real).with("fake", &fake).with("fooled", &fooled)
    });
    let loss = |builder: Builder, of: &str| builder.loss_of(of, BinaryCrossEntropyWithLogits, 1.0);
    let builder = ["real", "fake", "fooled"].into_iter().fold(Trainer::builder(model), loss);
    run(builder.global_batch(8), &Loader::new(data).shuffle(1), None, 1)
}

fn dark() -> String {
    let unit = |data: Loader, name: &str| {
        data.map(name, |sample, _| {
            sample.f32_mut("x").into_iter().flatten().for_each(|x| *x /= 255.0);
        })
    };
    let model = Sequential::new().add(Flatten).add(Dense::new(3));
    run(Trainer::builder(model).global_batch(8), &unit(unit(pixels(0), "once"), "again"), None, 1)
}

fn padded() -> String {
    let ids = (0..16 * 6).map(|i| if i % 6 < 2 + i / 6 % 3 { 1 + i * i % 7 } else { 0 }).collect();
    let data = Memory::new("x", [6], Values::I32(ids)).unwrap();
    let data = Loader::new(data.with("y", [], Values::I32([0, 1, 1, 0].repeat(4))).unwrap());
    let model = Sequential::new().add(Embedding::new(8, 4)).add(Gru::new(4).last()).add(Dense::new(2));
    run(Trainer::builder(model).global_batch(8), &data, None, 1)
}

fn exported(folder: &Path) -> String {
    let data = labelled(|i| i % 3);
    let mut trainer = classes().replicas(1).adapter("cpu").build(&data.fields().unwrap()).unwrap();
    trainer.export(folder.join("untrained.safetensors"), WeightPrecision::F32).unwrap();
    trainer.notes().join("\n")
}
