//! Mistakes that a new user made in a trial, and that nothing told of then.

use std::path::Path;

use unisono::data::{Balance, Csv, Missing, augment, balance};
use unisono::{Embedding, Phase, Predictor, Saving};

use super::runs::{classes, labelled, optimizer, run, with};
use super::*;

/// Mistakes in data, schedules, phases and files.
pub fn all() -> Vec<Mistake> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    vec![
        (
            "a table with few columns, scaled for training alone",
            table(10.0, 0.0),
            &["\"x\"", "+-", "all loaders"],
        ),
        ("a mean that is taken off for training alone", table(1.0, 300.0), &["\"x\"", "+-", "all loaders"]),
        (
            "predictions of data as they are stored",
            predicted(),
            &["in a batch of the prediction", "all loaders"],
        ),
        (
            "a second fit behind the end of a schedule",
            fitted_twice(),
            &["is 0 from step 4 on", "the run has 8 steps"],
        ),
        (
            "factors of a schedule by the epoch",
            optimizer(Sgd::new(Schedule::step(0.1, 1, 0.001))),
            &["falls from 0.1", "not epochs"],
        ),
        (
            "a function of the epoch",
            optimizer(Sgd::new(Schedule::function(|epoch| 0.1 * 0.001_f64.powi(epoch as i32)))),
            &["falls from 0.1", "not epochs"],
        ),
        (
            "averages that nothing uses",
            optimizer(Sgd::new(0.1).average_weights(0.5)),
            &["average_weights keeps averages", "use_average_weights"],
        ),
        ("a split of balanced data", balanced(), &["come several times", "after the split"]),
        ("targets that are the input", copied(), &["the targets \"y\" are the input \"x\" itself"]),
        (
            "numbers of a table that are not scaled",
            run(classes().optimizer(AdamW::new(0.1)), &large(), None, 1),
            &["cross-entropy of the first step", "that of a guess is 1.1", "normalize"],
        ),
        (
            "a phase that trains the other's parameters too",
            with(|b| {
                b.phase(Phase::new("critic").trains(|name| name == "bias")).phase(Phase::new("generator"))
            }),
            &["\"generator\" trains all parameters", "\"critic\""],
        ),
        (
            "a checkpoint as a model",
            checkpoint(folder, "checkpoints/step-00000004"),
            &["of a checkpoint", "open_model"],
        ),
        ("a run as a model", checkpoint(folder, ""), &["has checkpoints of a run", "Trainer::export"]),
        ("empty cells", csv(folder, "a,y\n1,0\n,1\n", |csv| csv.label("y")), &["Csv::missing"]),
        ("texts in a table", csv(folder, "a,y\ncat,0\ndog,1\n", |csv| csv.label("y")), &["Csv::category"]),
        ("decimal commas", csv(folder, "a,y\n\"1,5\",0\n", |csv| csv.label("y")), &["has a point", "comma"]),
        ("labels that are texts", csv(folder, "a,y\n1,cat\n", |csv| csv.label("y")), &["Csv::numbers"]),
        ("prices as labels", csv(folder, "a,y\n1,1.5\n", |csv| csv.label("y")), &["Csv::target"]),
        ("another delimiter", csv(folder, "1;0\n2;1\n", |csv| csv), &["Csv::delimiter"]),
        (
            "missing cells of no columns",
            csv(folder, "a,y\n1,0\n", |csv| csv.missing(Missing::Median).label("y")),
            &["choose them by Csv::numbers"],
        ),
        (
            "mixup of labels",
            labelled(|i| i % 3)
                .batch(8)
                .map_batch("mixup", augment::mixup(&["x", "y"], 0.2))
                .epoch(0)
                .unwrap()
                .next()
                .unwrap()
                .unwrap_err()
                .to_string(),
            &["'y'", "i32", "one_hot"],
        ),
    ]
}

/// Returns 32 samples of four numbers in -1..=1, times a factor and shifted, and of three classes.
fn scaled(factor: f32, offset: f32, first: usize) -> Loader {
    let values =
        (0..128).map(|i| offset + factor * (((i * 7 + first) % 9) as f32 / 4.0 - 1.0)).collect::<Vec<_>>();
    Loader::new(Memory::labelled(values, [4], (0..32).map(|i| i % 3).collect::<Vec<_>>()).unwrap())
}

/// What is said to validation data of another scale.
fn table(factor: f32, offset: f32) -> String {
    run(classes(), &scaled(1.0, 0.0, 0), Some(&scaled(factor, offset, 3)), 1)
}

fn predicted() -> String {
    let train = scaled(1.0, 0.0, 0);
    let mut trainer = classes().replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    trainer.predict(&scaled(20.0, 0.0, 3)).unwrap();
    trainer.notes().join("\n")
}

fn fitted_twice() -> String {
    let train = labelled(|i| i % 3);
    let builder = classes().optimizer(Sgd::new(Schedule::cosine(0.1, 4)));
    let mut trainer = builder.replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    assert!(!trainer.notes().join("\n").contains("from step"));
    trainer.fit(&train, None, 2).unwrap();
    trainer.notes().join("\n")
}

fn balanced() -> String {
    let rows = Memory::labelled(
        (0..32).map(|i| i as f32).collect::<Vec<_>>(),
        [1],
        (0..32).map(|i| i32::from(i < 8)).collect::<Vec<_>>(),
    );
    let even = balance(rows.unwrap(), "y", Balance::Most, 1).unwrap();
    let (train, validation) = Loader::new(even).validation_split(0.25).unwrap();
    run(classes(), &train, Some(&validation), 1)
}

fn copied() -> String {
    let ids = || Values::I32((0..64).map(|i| i * i % 11).collect());
    let data = Memory::new("x", [8], ids()).unwrap().with("y", [8], ids()).unwrap();
    let model = Sequential::new().add(Embedding::new(11, 8)).add(Dense::new(11));
    run(Trainer::builder(model).global_batch(8), &Loader::new(data), None, 1)
}

/// Three classes of four numbers up to 50,000.
fn large() -> Loader {
    scaled(50_000.0, 0.0, 0)
}

/// What is said when a run's directory, or a part of it, is opened as a model.
fn checkpoint(folder: &Path, part: &str) -> String {
    let (dir, train) = (folder.join("run"), labelled(|i| i % 3));
    if !dir.exists() {
        let mut trainer = classes().replicas(1).adapter("cpu").build(&train.fields().unwrap()).unwrap();
        trainer.save_to(Saving::new(&dir)).unwrap();
        trainer.fit(&train, None, 1).unwrap();
    }
    Predictor::open(dir.join(part)).err().map_or_else(String::new, |error| error.to_string())
}

/// What is said to a table.
fn csv(folder: &Path, text: &str, read: impl Fn(Csv) -> Csv) -> String {
    let path = folder.join("table.csv");
    std::fs::write(&path, text).unwrap();
    read(Csv::new(&path)).read().unwrap_err().to_string()
}
