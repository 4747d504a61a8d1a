//! Mistakes that the library once accepted in silence.

use std::time::Duration;

use unisono::checkpoint::{Plan, Tensor};
use unisono::data::augment::{ColorJitter, contrast, flip_horizontal, mixup, shift};
use unisono::data::{
    Buckets, Csv, ImageFolder, Missing, Per, Sequences, Spectrogram, Statistics, TarShards, channels_first,
    normalize, rescale,
};
use unisono::{
    Adam, Audits, BatchNorm, BinaryCrossEntropyWithLogits, Context, Conv1d, Ctc, EarlyStopping, FromFn,
    GlobalMaxPool1d, Groups, InBatchSoftmax, KlDivergence, LayerNorm, Phase, Softmax, Var,
};

use super::runs::{classes, labelled, optimizer, run, targets, with};
use super::*;

/// Mistakes in settings, weights, names, losses of one's own, and data.
pub fn all() -> Vec<Mistake> {
    let mut all = of_trainers();
    all.extend(of_loaders());
    all.extend(of_sources());
    all
}

fn of_trainers() -> Vec<Mistake> {
    vec![
        ("the field w named once more", with(|b| b.sample_weights("w")), &["\"w\"", "all outputs"]),
        ("a share of audits in percent", with(|b| b.audits(Audits::Share(1.5))), &["audits", "1.5", "0..=1"]),
        ("no shard at once", with(|b| b.shards_at_once(0)), &["shards at once", "0 shards"]),
        ("nine steps in flight", with(|b| b.steps_in_flight(9)), &["steps in flight", "1 or 2"]),
        ("no time to answer", with(|b| b.deadline(Duration::ZERO)), &["deadline"]),
        ("nesterov without momentum", optimizer(Sgd::new(0.1).nesterov()), &["sgd: nesterov", "momentum"]),
        (
            "a group of no parameter",
            optimizer(Groups::new(Sgd::new(0.1)).group(|name| name.starts_with("head."), Sgd::new(1.0))),
            &["group 1 gets none of the 2 parameters"],
        ),
        (
            "an optimizer beside phases",
            with(|b| b.optimizer(Adam::new(0.5)).phase(Phase::new("all"))),
            &["Builder::optimizer is not used"],
        ),
        (
            "a phase that freezes what it trains",
            with(|b| {
                let frozen = Sgd::new(0.1).freeze(|name| name == "bias");
                b.phase(Phase::new("last").trains(|name| name == "bias").optimizer(frozen))
            }),
            &["phase \"last\"", "matches all parameters"],
        ),
        (
            "counts for probabilities",
            run(
                classes().loss(CrossEntropy::new().probabilities()),
                &targets(&[3], Values::F32((0..48).map(|i| (i % 3) as f32).collect())),
                None,
                1,
            ),
            &["sample 0", "no distribution over 3 classes"],
        ),
        (
            "softmax before a CTC loss's",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(3)).add(Softmax)).global_batch(8).loss(Ctc),
                &words(),
                None,
                1,
            ),
            &["ctc takes logits"],
        ),
        (
            "one sample for a batch norm",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(3)).add(BatchNorm::new())).global_batch(1),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["1 (batch_norm) sees one sample"],
        ),
        (
            "one name for two layers",
            run(
                Trainer::builder(FromFn::new("twice", |cx: &mut Context, x: &Var| {
                    let x = cx.apply("norm", &LayerNorm::new(), x);
                    let y = cx.apply("out", &Dense::new(3), &x);
                    cx.apply("norm", &BatchNorm::new(), &y)
                }))
                .global_batch(8),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["norm", "layer_norm already"],
        ),
        (
            "steps in the place of channels",
            layer("words", Sequential::new().add(Embedding::new(3, 4)).add(Conv1d::new(2, 1))),
            &["1 (conv1d) takes 5 channels of 4 steps", "transpose(1, 2)"],
        ),
        (
            "a pool of channels behind a recurrent layer",
            layer("words", Sequential::new().add(Embedding::new(3, 4)).add(Gru::new(6)).add(GlobalMaxPool1d)),
            &["2 (global_max_pool1d) takes 5 channels of 6 steps"],
        ),
        (
            "the accuracy of several answers",
            run(
                classes().loss(BinaryCrossEntropyWithLogits).metric(Accuracy),
                &targets(&[3], Values::F32((0..48).map(|i| (i % 2) as f32).collect())),
                None,
                1,
            ),
            &["several answers", "BinaryAccuracy"],
        ),
        ("dropout inside of a single layer", layer("words", dropped()), &["lstm: dropout is between layers"]),
        (
            "classes that are the channels of a mask",
            layer_and_loss(),
            &["[B, 3, 8, 8]", "[B, 8, 8] i32", "last axis"],
        ),
        (
            "an own loop that nothing stops, and a run that is saved nowhere",
            own_loop(),
            &["calls no callbacks", "nothing is saved"],
        ),
        ("an adapter by its number", with(|b| b.adapter("0")), &["\"0\""]),
        (
            "counts for a divergence",
            run(
                classes().loss(KlDivergence::new()),
                &targets(&[3], Values::F32((0..48).map(|i| (i % 3) as f32).collect())),
                None,
                1,
            ),
            &["sample 0", "no distribution over 3 classes"],
        ),
        (
            "the softmax of one number",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(1)).add(Softmax)).loss(MeanSquaredError),
                &targets(&[1], Values::F32(vec![1.0; 16])),
                None,
                1,
            ),
            &["softmax of one number", "Sigmoid"],
        ),
        (
            "pairs in batches of one",
            run(
                Trainer::builder(Model::new(|cx, x| {
                    let both = cx.apply("code", &Dense::new(4), &x["x"]).reshape(&[2, 2]);
                    Outputs::new().with("pair", &both)
                }))
                .loss_between("pair", "x", InBatchSoftmax::new(1.0, 8), 1.0)
                .global_batch(1),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["in-batch softmax compares"],
        ),
        (
            "a parameter that is replaced",
            model(|cx, x| {
                let w = cx.parameter("w", &[6], Initializer::Ones);
                cx.replace(&w, &(&w * 2.0));
                &x["x"] * w
            }),
            &["w is a parameter"],
        ),
        (
            "a recurrent layer behind a last step",
            layer(
                "words",
                Sequential::new().add(Embedding::new(3, 4)).add(Gru::new(6).last()).add(Gru::new(6)),
            ),
            &["2.gru", "leave out its `last`"],
        ),
        ("labels of an own loss from 1 on", own_loss(), &["sample 2", "id 3", "is not in 0..3"]),
        ("weights under a name of one's own", with_weights("weight"), &["fields weight", "read x, y"]),
        ("weights that are no numbers", weights_of(f32::NAN).0, &["\"bias\"", "value 0", "NaN"]),
        ("a file of a run that diverged", weights_of(f32::INFINITY).1, &["1 values of bias", "infinite"]),
        ("a target too large to be squared", evaluated(1e30), &["the loss of sample 3 is inf", "evaluation"]),
    ]
}

/// Mistakes in the order, the transforms and the batches of a loader.
fn of_loaders() -> Vec<Mistake> {
    let lengths = |lengths: [u32; 4], field: &str| {
        let texts = Sequences::labelled([vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 3, 4]], [0; 4], 0);
        loaded(&Loader::new(texts.unwrap()).buckets(Buckets::new(&lengths, [2, 4], &[field]).unwrap()))
    };
    let colours = Statistics::of(pictures().source(), "x", Per::Channel, 1).unwrap();
    let first = || pictures().try_map("first", channels_first("x"));
    vec![
        ("buckets of a field misspelled", lengths([1, 2, 3, 4], "X"), &["buckets", "no field 'X'", "\"x\""]),
        (
            "the lengths of other samples",
            lengths([4, 3, 2, 1], "x"),
            &["sample 2", "field 'x'", "first 2 of 4", "no padding"],
        ),
        (
            "a window of no samples",
            loaded(&pictures().shuffle_window(1, 0)),
            &["shuffle_window", "0 samples"],
        ),
        (
            "a flip in percent",
            loaded(&pictures().try_map("flip", flip_horizontal("x", 50.0))),
            &["flip_horizontal", "probability of 50"],
        ),
        (
            "a contrast upside down",
            loaded(&pictures().try_map("contrast", contrast("x", 1.5, 0.5))),
            &["contrast from 1.5 to 0.5"],
        ),
        (
            "bytes in a jitter of values from 0 to 1",
            loaded(
                &pictures()
                    .try_map("bytes", rescale("x", 255.0, 0.0))
                    .try_map("jitter", ColorJitter::new().hue(0.1).transform("x")),
            ),
            &["ColorJitter", "white is 1", "values_to"],
        ),
        (
            "a shift in pixels",
            loaded(&pictures().try_map("shift", shift("x", 4.0, 4.0))),
            &["shift by 4", "fraction"],
        ),
        (
            "boxes that are flipped",
            loaded(&pictures().try_map("flip", flip_horizontal(["x", "boxes"], 0.5))),
            &["field 'boxes'", "[2, 4]", "Loader::map"],
        ),
        (
            "a flip behind channels_first",
            loaded(&first().try_map("flip", flip_horizontal("x", 0.5))),
            &["[3, 8, 8]", "channels_first is the last"],
        ),
        (
            "channels_first twice",
            loaded(&first().try_map("again", channels_first("x"))),
            &["[3, 8, 8]", "comes once"],
        ),
        (
            "statistics of colours behind channels_first",
            loaded(&first().try_map("normalize", normalize("x", &colours))),
            &["[3, 8, 8]", "3 groups", "normalize"],
        ),
        (
            "a mixup of one sample",
            loaded(&pictures().try_map("mixup", mixup(&["x"], 0.2))),
            &["mixup", "map_batch"],
        ),
        (
            "a mixup that leaves the labels",
            loaded(&pictures().map_batch("mixup", mixup(&["x"], 0.2))),
            &["field 'y'", "mixup", "one_hot"],
        ),
        (
            "mel bands without a frequency",
            loaded(&waves().try_map("mel", Spectrogram::new(64).mel(16_000, 40).transform("x"))),
            &["of 40 mel bands", "longer frames"],
        ),
    ]
}

/// Mistakes in files of data.
fn of_sources() -> Vec<Mistake> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let table = file("table.csv", ",a,b,y\n0,1.5,,0\n1,2.5,,1\n");
    let chosen = |columns: [&str; 2]| Csv::new(&table).numbers(columns).missing(Missing::Value(0.0));
    let (_, schema) = chosen(["a", "b"]).read_with_schema().unwrap();
    // Pictures are not opened before they are needed.
    for name in ["all/train/cat/1.png", "all/val/cat/1.png"] {
        file(name, "");
    }
    let parts = ImageFolder::open(dir.path().join("all")).map(drop).unwrap_err().to_string();
    let cats = ImageFolder::open(dir.path().join("all/train")).unwrap().size(0, 0);
    let shard = file("shard.tar", &"\0".repeat(1024));
    let twice = TarShards::open([&shard, &shard], |files| Err(files.key().into()));
    vec![
        (
            "the index of a pandas table",
            table_error(&Csv::new(&table).label("y")),
            &["index", "Csv::numbers"],
        ),
        (
            "the mean of no numbers",
            table_error(&chosen(["a", "b"]).missing(Missing::Mean)),
            &["Missing::Mean", "\"b\""],
        ),
        (
            "columns in another order",
            table_error(&chosen(["b", "a"]).like(&schema)),
            &["another order", "[\"a\", \"b\"]"],
        ),
        ("the parts of a data set as classes", parts, &["\"train\", \"val\"", "ImageFolder::like"]),
        ("pictures without pixels", loaded(&Loader::new(cats)), &["ImageFolder::size", "above 0"]),
        ("a shard twice", twice.map(drop).unwrap_err().to_string(), &["shard.tar", "twice"]),
    ]
}

/// What is said to a table that is read.
fn table_error(table: &Csv) -> String {
    table.read().map(drop).unwrap_err().to_string()
}

/// What is said to a loader, when its fields are asked for or in its first epoch.
fn loaded(loader: &Loader) -> String {
    let read = loader.fields().and_then(|_| loader.epoch(0)?.try_for_each(|batch| batch.map(drop)));
    read.map_or_else(|error| error.to_string(), |()| String::new())
}

/// Four pictures of three colours, with labels and two boxes each.
fn pictures() -> Loader {
    let numbers = |count: usize| Values::F32((0..count).map(|i| (i % 7) as f32 / 7.0).collect());
    let pictures = Memory::new("x", [8, 8, 3], numbers(4 * 192)).unwrap();
    let labelled = pictures.with("y", [], Values::I32(vec![0, 1, 2, 0])).unwrap();
    Loader::new(labelled.with("boxes", [2, 4], numbers(32)).unwrap())
}

/// Two waveforms.
fn waves() -> Loader {
    Loader::new(Memory::new("x", [256], Values::F32(vec![0.5; 512])).unwrap())
}

/// A recurrent layer whose only layer has dropout.
fn dropped() -> Sequential {
    Sequential::new().add(Embedding::new(3, 4)).add(Lstm::new(6).dropout(0.2))
}

/// What is said to logits with channels first and a mask of classes.
fn layer_and_loss() -> String {
    let pictures = Memory::new("x", [1, 8, 8], Values::F32(vec![0.5; 16 * 64])).unwrap();
    let data = Loader::new(pictures.with("y", [8, 8], Values::I32(vec![0; 16 * 64])).unwrap());
    run(Trainer::builder(Conv2d::new(3, 1)).global_batch(8), &data, None, 1)
}

/// What is said to a loop of one's own with a callback, and to a save without a directory.
fn own_loop() -> String {
    let data = labelled(|i| i % 3).batch(8);
    let builder = classes().replicas(1).adapter("cpu").callback(EarlyStopping::lowest("loss"));
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let batch = data.epoch(0).unwrap().next().unwrap().unwrap();
    trainer.step(&batch).unwrap();
    assert!(trainer.save().unwrap().is_none());
    trainer.notes().join("\n")
}

/// 16 sequences of four steps with words of two letters.
fn words() -> Loader {
    let x = Memory::new("x", [4, 2], Values::F32((0..128).map(|i| i as f32 / 128.0).collect())).unwrap();
    Loader::new(x.with("y", [2], Values::I32((0..32).map(|i| 1 + i % 2).collect())).unwrap())
}

/// What is said to labels 1, 2 and 3 of a model that computes the loss of three classes itself.
fn own_loss() -> String {
    let model = Model::new(|cx, x| {
        let logits = cx.apply("logits", &Dense::new(3), &x["x"]);
        cx.loss("own", &-logits.log_softmax().take(&x["y"]), 1.0);
        Outputs::new().with("logits", &logits)
    });
    run(Trainer::builder(model).global_batch(8), &labelled(|i| i % 3 + 1), None, 1)
}

/// What is said to samples with weights in a field of this name.
fn with_weights(name: &str) -> String {
    let data = Memory::labelled([0.5; 32], [2], [0, 1].repeat(8)).unwrap();
    run(classes(), &Loader::new(data.with(name, [], Values::F32(vec![1.0; 16])).unwrap()), None, 1)
}

/// What is said to a bias of this value that is set, and to one that is loaded.
fn weights_of(value: f32) -> (String, String) {
    let mut trainer = classes().replicas(1).adapter("cpu").build(&labelled(|i| i % 3).fields().unwrap());
    let trainer = trainer.as_mut().unwrap();
    let mut weights = trainer.weights().unwrap();
    weights.insert("bias".into(), Tensor::f32(&[3], &[0.0, value, 0.0]).unwrap());
    let set = trainer.set_tensor("bias", &[value; 3]).unwrap_err().to_string();
    let before = trainer.state_sha256().unwrap();
    let loaded = trainer.load_tensors(&weights, &Plan::new()).unwrap_err().to_string();
    assert_eq!(trainer.state_sha256().unwrap(), before);
    (set, loaded)
}

/// What is said in an evaluation where the target of sample 3 is this.
fn evaluated(target: f32) -> String {
    let data = targets(&[1], Values::F32((0..16).map(|i| if i == 3 { target } else { 0.5 }).collect()));
    let mean = Trainer::builder(Dense::new(1)).loss(MeanSquaredError).global_batch(8);
    let mut trainer = mean.replicas(1).adapter("cpu").build(&data.fields().unwrap()).unwrap();
    trainer.evaluate(&data).unwrap();
    trainer.notes().join("\n")
}
