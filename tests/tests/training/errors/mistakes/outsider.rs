//! Mistakes that a new user made in a trial, and that nothing told of then.

use std::path::Path;

use unisono::data::{Balance, Csv, Missing, Sequences, Vocabulary, augment, balance};
use unisono::{BinaryAccuracy, BinaryCrossEntropyWithLogits, Embedding, Phase, Predictor, Relu, Saving};

use super::runs::{classes, labelled, optimizer, run, targets, with};
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
        (
            "a ReLU before targets below 0",
            run(of_prices(Sequential::new().add(Dense::new(1)).add(Relu)), &prices(1.0), None, 1),
            &["is a relu", "\"y\" have -1", "leave the activation out"],
        ),
        (
            "a ReLU before cross-entropy",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(3)).add(Relu)).global_batch(8),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["1 (relu)", "logits of any sign"],
        ),
        (
            "prices that are not scaled",
            run(of_prices(Sequential::new().add(Dense::new(1))), &prices(300_000.0), None, 1),
            &["the targets \"y\" are", "outputs start near 0", "normalize"],
        ),
        (
            "the accuracy of a quantity",
            run(
                of_prices(Sequential::new().add(Dense::new(1))).metric(BinaryAccuracy),
                &prices(1.0),
                None,
                1,
            ),
            &["binary accuracy", "\"y\" has -1", "MeanAbsoluteError or R2"],
        ),
        (
            "several labels as probabilities",
            run(
                classes().loss(CrossEntropy::new().probabilities()),
                &targets(&[3], Values::F32([1.0, 0.0, 1.0].repeat(16))),
                None,
                1,
            ),
            &["several ones are several labels", "BinaryCrossEntropyWithLogits"],
        ),
        ("the accuracy of a rare class", rare(), &["the share of the class 0", "class_weights"]),
        ("two losses of very different size", two_losses(), &["price", "sold", "follows the first alone"]),
        (
            "a rate at which nothing is learned",
            run(classes().optimizer(Sgd::new(300.0)), &labelled(|i| i * i % 3), None, 4),
            &["after", "epochs the cross-entropy is", "LearningRateFinder"],
        ),
        ("two vocabularies", two_vocabularies(), &["field 'x'", "in the validation data", "one Vocabulary"]),
        ("lengths that no layer reads", lengths(), &["fields length", "padding", "mask"]),
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

/// Sixteen samples with a quantity from -1 to 1, times a factor.
fn prices(factor: f32) -> Loader {
    targets(&[1], Values::F32((0..16).map(|i| factor * ((i % 5) as f32 / 2.0 - 1.0)).collect()))
}

fn of_prices(model: Sequential) -> Builder {
    Trainer::builder(model).loss(MeanSquaredError).global_batch(8)
}

fn rare() -> String {
    let data = |at: i32| labelled(move |i| i32::from(i == at));
    let builder = Trainer::builder(Dense::new(2)).metric(Accuracy).global_batch(8);
    run(builder.optimizer(Sgd::new(0.1)), &data(5), Some(&data(7)), 4)
}

fn two_losses() -> String {
    let x = Memory::new("x", [2], Values::F32(vec![0.5; 32])).unwrap();
    let data = x.with("price", [1], Values::F32(vec![300.0; 16])).unwrap();
    let data = data.with("sold", [1], Values::F32([0.0, 1.0].repeat(8))).unwrap();
    let model = Model::new(|cx, x| {
        let of = |cx: &mut Context, name: &str| cx.apply(name, &Dense::new(1), &x["x"]);
        let (price, sold) = (of(cx, "of_price"), of(cx, "of_sold"));
        Outputs::new().with("price", &price).with("sold", &sold)
    });
    let builder = Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0);
    run(
        builder.loss_of("sold", BinaryCrossEntropyWithLogits, 1.0).global_batch(8),
        &Loader::new(data),
        None,
        1,
    )
}

/// Texts of films and of weather, each with a vocabulary of its own.
fn two_vocabularies() -> String {
    let texts = |words: [&str; 2]| {
        let texts: Vec<String> =
            (0..16).map(|i| format!("{} {}", words[i % 2], words[(i + 1) % 2])).collect();
        let vocabulary = Vocabulary::words().learn(&texts).unwrap();
        Loader::new(vocabulary.sequences(&texts, [0, 1].repeat(8), 4).unwrap())
    };
    run(reader(), &texts(["good", "film"]), Some(&texts(["cold", "rain"])), 1)
}

fn lengths() -> String {
    let rows = (0..16).map(|i| vec![1; 1 + i % 4]);
    run(reader(), &Loader::new(Sequences::labelled(rows, [0, 1].repeat(8), 0).unwrap()), None, 1)
}

fn reader() -> Builder {
    let model = Sequential::new().add(Embedding::new(8, 4)).add(Gru::new(4).last()).add(Dense::new(2));
    Trainer::builder(model).global_batch(8)
}
