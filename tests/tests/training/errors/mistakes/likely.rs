//! Mistakes that train, and most likely not what their author meant: notes say so.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use unisono::checkpoint::{Plan, Tensors};
use unisono::data::{DataError, Draws, FieldSpec, Per, Sample, Source, Statistics, normalize, rescale};
use unisono::{
    AvgPool2d, BatchNorm, BinaryAccuracy, BinaryCrossEntropyWithLogits, Conv3d, Dice, Dropout, EarlyStopping,
    Embedding, F1, Flatten, FromFn, Initializer, InstanceNorm, KlDivergence, LayerNorm, LearningRateFinder,
    LossScale, Phase, Saving, Sigmoid, Softmax, TransformerBlock, TripletHard,
};

use super::runs::{classes, labelled, optimizer, run, targets, with};
use super::*;

/// Mistakes in data, metrics, settings and files.
pub fn all() -> Vec<Mistake> {
    let zero_ignored = || classes().loss(CrossEntropy::new().ignore_index(0));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    vec![
        (
            "a label that the loss ignores and the metric counts",
            run(zero_ignored().metric(Accuracy), &labelled(|i| i % 3), None, 1),
            &["ignores the label 0", "metric accuracy counts it", "ignore_index(0)"],
        ),
        (
            "a metric of logits behind a sigmoid",
            run(
                yes_or_no().metric(BinaryAccuracy),
                &targets(&[1], Values::F32([0.0, 1.0].repeat(8))),
                None,
                1,
            ),
            &["binary accuracy takes logits", "sigmoid", "probabilities()"],
        ),
        (
            "classes in the place of several answers",
            run(
                classes().loss(BinaryCrossEntropyWithLogits).metric(F1::macro_average(3)),
                &targets(&[3], Values::F32([0.0, 1.0, 1.0].repeat(16))),
                None,
                1,
            ),
            &["f1 (macro)", "several answers that may all be true", "multilabel()"],
        ),
        (
            "a dense layer of a picture's rows",
            behind_conv(Dense::new(4)),
            &["1 (dense)", "each row of 6 pixels", "Flatten"],
        ),
        (
            "softmax of a picture's rows",
            behind_conv(Softmax),
            &["1 (softmax)", "each row of 6 pixels", "permute"],
        ),
        (
            "a batch norm of steps",
            layer("words", Sequential::new().add(Embedding::new(3, 4)).add(BatchNorm::new())),
            &["1 (batch_norm) takes 5 channels of 4 steps", "transpose(1, 2)"],
        ),
        (
            "volumes with channels last",
            volumes(),
            &["0 (conv3d) takes 8 channels of 8 x 8 x 1", "volumes of 8 x 8 x 8", "permute"],
        ),
        (
            "dropout of the outputs",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(3)).add(Dropout::new(0.5))),
                &labelled(|i| i % 3),
                None,
                1,
            ),
            &["ends in 1 (dropout)", "before the last layer"],
        ),
        (
            "a batch norm that does not move",
            layer("picture", BatchNorm::new().momentum(0.0)),
            &["momentum 0", "never change"],
        ),
        (
            "hard triplets of one class",
            run(classes().loss(TripletHard::new(1.0, 8)), &labelled(|_| 0), None, 1),
            &["the loss of the first step is 0", "gradient"],
        ),
        (
            "labels that f32 cannot tell apart",
            run(classes().loss(TripletHard::new(1.0, 8)), &labelled(|i| 16_777_216 + i), None, 1),
            &["16777216 is not between -2^24 and 2^24"],
        ),
        (
            "a plan that transposes nothing",
            planned("", &Plan::new().transpose("1.weight")),
            &["would transpose 1.weight", "no such tensor"],
        ),
        (
            "a renaming without stars",
            planned("head.", &Plan::new().rename("head.", "")),
            &["missing: \"bias\"", "would rename head. to ", "no such tensor"],
        ),
        ("weights of ONNX", opened(folder), &["an ONNX file", "safetensors"]),
        ("an epoch that is repeated by hand", repeated(), &["trains epoch 0 again", "Loader::epoch"]),
        (
            "a callback that has no validation to watch",
            with(|b| b.callback(EarlyStopping::lowest("loss"))),
            &["early stopping watches training metrics"],
        ),
        (
            "a resume where there is nothing",
            nothing_there(folder),
            &["has no checkpoint", "from the beginning"],
        ),
        (
            "a deviation below 0",
            layer("x", Dense::new(3).initializer(Initializer::Normal(-1.0))),
            &["Normal(-1.0)", "not negative"],
        ),
        ("a search for a rate in too short a fit", searched(), &["None"]),
        (
            "softmax before a divergence's own",
            run(
                Trainer::builder(Sequential::new().add(Dense::new(2)).add(Softmax)).loss(KlDivergence::new()),
                &targets(&[2], Values::F32([0.25, 0.75].repeat(16))),
                None,
                1,
            ),
            &["kl divergence takes logits", "softmax", "leave the layer out"],
        ),
        (
            "sigmoid before Dice's own",
            run(yes_or_no().loss(Dice::new()), &targets(&[1], Values::F32([0.0, 1.0].repeat(8))), None, 1),
            &["dice takes logits", "sigmoid", "leave the layer out"],
        ),
        (
            "a parameter of evaluations alone",
            model(|cx, x| {
                let y = cx.apply("first", &Dense::new(1), &x["x"]);
                if cx.is_training() { y } else { cx.apply("more", &Dense::new(1), &y) }
            }),
            &["evaluation", "more.weight", "in both modes"],
        ),
        (
            "validation data that are the training data read again",
            run(classes(), &labelled(|i| i % 3), Some(&labelled(|i| i % 3)), 1),
            &["samples of the training data", "validation_split"],
        ),
        (
            "overlapping windows that are split at random",
            overlapping_windows(),
            &["overlap", "random split", "Windows::rows"],
        ),
        (
            "normalized for training alone",
            normalized(true, false),
            &["\"x\"", "standard deviation", "in one of the training", "all loaders"],
        ),
        (
            "scaled for validation alone",
            normalized(false, true),
            &["\"x\"", "standard deviation", "all loaders"],
        ),
        (
            "a schedule of a phase for another run",
            with(|b| b.phase(Phase::new("all").optimizer(Sgd::new(Schedule::cosine(0.1, 1000))))),
            &["phase 'all'", "made for 1000 steps", "the run has 4 steps"],
        ),
        (
            "averages that move too slowly for the run",
            optimizer(Sgd::new(0.1).average_weights(0.9999)),
            &["average_weights(0.9999)", "100 %", "4 steps"],
        ),
        (
            "steps of a schedule that are epochs",
            optimizer(Sgd::new(Schedule::step(0.1, 30, 0.1))),
            &["after each 30 steps", "the run has 4 steps", "not epochs"],
        ),
        (
            "a cycle that ends before the run",
            optimizer(Sgd::new(Schedule::one_cycle(0.1, 2))),
            &["from step 2 on", "change almost nothing"],
        ),
        (
            "the end of a schedule without one",
            optimizer(Sgd::new(Schedule::step(0.1, 2, 0.5).end(0.01))),
            &["end(0.01) is for a cosine or a polynomial"],
        ),
        (
            "a model that draws numbers itself",
            drawn(),
            &["another one each time it is traced", "draw in the graph"],
        ),
        (
            "a mask of integers",
            model(|cx, x| Gru::new(3).masked(cx, &x["words"].to_f32().reshape(&[5, 1]), Some(&x["words"]))),
            &["gru", "i32", "f32, of 0 and 1", "to_f32"],
        ),
        (
            "Keras's momentum of a batch norm",
            layer("picture", BatchNorm::new().momentum(0.99)),
            &["layer: a batch_norm", "0.99", "Keras", "0.010"],
        ),
        (
            "a norm along the width",
            layer("picture", Sequential::new().add(Conv2d::new(4, 3)).add(LayerNorm::new())),
            &["layer_norm", "each row of 6 pixels", "GroupNorm::new(1)"],
        ),
        (
            "a norm of one number",
            layer("price", LayerNorm::new()),
            &["a layer_norm of [B, 1]", "it gives its bias"],
        ),
        (
            "a norm of one pixel",
            layer("picture", Sequential::new().add(AvgPool2d::new(8)).add(InstanceNorm::new())),
            &["instance_norm", "[B, 1, 1, 1]", "it gives zeros"],
        ),
        (
            "a loss scale in single precision",
            with(|b| b.loss_scale(LossScale::Fixed(8.0))),
            &["loss_scale is not used"],
        ),
        (
            "a sharded optimizer of one replica",
            with(|b| b.shard_optimizer(1)),
            &["shard_optimizer saves no memory"],
        ),
        ("a trace of nothing", traced(folder), &["write_trace", "Builder::timeline"]),
        ("an ONNX file in the place of weights", exported(folder), &["weights.safetensors", ".onnx"]),
        ("a run that is resumed in its middle", resumed(folder), &["replaces the 4 steps", "had 2"]),
        ("random numbers of one's own in a map", own_numbers(), &["map 'noise'", "sample 0", "Draws"]),
        ("more outputs than classes", named_classes(), &["has 3 classes", "\"y\" has names of 2"]),
        (
            "a language model that sees the next words",
            next_words(),
            &["\"y\" are the next ids of \"x\"", "self_attn", "causal()"],
        ),
    ]
}

fn yes_or_no() -> Builder {
    let model = Sequential::new().add(Dense::new(1)).add(Sigmoid);
    Trainer::builder(model).loss(MeanSquaredError).global_batch(8)
}

/// Returns what is said if only the training data, or only the validation data, are normalized.
fn normalized(training: bool, validation: bool) -> String {
    let data = |first: u64| {
        let values = (0..32 * 32).map(|i| ((i * 7 + first) % 200) as f32).collect::<Vec<_>>();
        Loader::new(Memory::labelled(values, [32], (0..32).map(|i| i % 3).collect::<Vec<_>>()).unwrap())
    };
    let statistics = Statistics::of(data(0).source(), "x", Per::All, 1).unwrap();
    let train = if training { data(0).try_map("normalize", normalize("x", &statistics)) } else { data(0) };
    let held_out = data(3);
    let held_out =
        if validation { held_out.try_map("scale", rescale("x", 1.0 / 255.0, 0.0)) } else { held_out };
    run(classes(), &train, Some(&held_out), 1)
}

/// Returns a trainer of some data that has trained for an epoch.
fn trained(data: &Loader) -> Trainer {
    let mut trainer = classes().replicas(1).adapter("cpu").build(&data.fields().unwrap()).unwrap();
    trainer.fit(data, None, 1).unwrap();
    trainer
}

fn traced(folder: &Path) -> String {
    trained(&labelled(|i| i % 3)).write_trace(&folder.join("trace.json")).unwrap_err().to_string()
}

fn exported(folder: &Path) -> String {
    trained(&labelled(|i| i % 3)).export_onnx(folder.join("weights.safetensors")).unwrap_err().to_string()
}

/// What is said when a run of two steps is resumed by a trainer that has made four.
fn resumed(folder: &Path) -> String {
    let data = labelled(|i| i % 3);
    let mut first = classes().replicas(1).adapter("cpu").build(&data.fields().unwrap()).unwrap();
    first.save_to(Saving::new(folder.join("run"))).unwrap();
    first.fit(&data.clone().limit_batches(2), None, 1).unwrap();
    drop(first);
    let mut second = trained(&data);
    second.save_to(Saving::new(folder.join("run"))).unwrap();
    second.resume().unwrap();
    second.notes().join("\n")
}

fn own_numbers() -> String {
    let next = AtomicU32::new(1);
    let noise = move |sample: &mut Sample, _: &mut Draws| {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += seed as f32);
    };
    labelled(|i| i % 3).map("noise", noise).fields().unwrap_err().to_string()
}

/// Two named classes of rows.
struct CatsAndDogs(Memory, [String; 2]);

impl Source for CatsAndDogs {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.0.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.0.fetch(index)
    }
    fn field_classes(&self, field: &str) -> Option<&[String]> {
        (field == "y").then_some(&self.1)
    }
}

fn named_classes() -> String {
    let rows = Memory::labelled([0.5; 32], [2], [0, 1].repeat(8)).unwrap();
    run(classes(), &Loader::new(CatsAndDogs(rows, ["cat", "dog"].map(str::to_owned))), None, 1)
}

fn next_words() -> String {
    let text: Vec<i32> = (0..17).map(|i| i * i % 11).collect();
    let rows =
        |from: usize| (0..8).flat_map(|row| text[row + from..row + from + 8].to_vec()).collect::<Vec<_>>();
    let data = Memory::new("x", [8], Values::I32(rows(0))).unwrap();
    let data = data.with("y", [8], Values::I32(rows(1))).unwrap();
    let model =
        Sequential::new().add(Embedding::new(11, 8)).add(TransformerBlock::new(2)).add(Dense::new(11));
    run(Trainer::builder(model).global_batch(8), &Loader::new(data), None, 1)
}

fn overlapping_windows() -> String {
    let series = Field::f32([64, 1], (0..64).map(|i| (i % 7) as f32).collect::<Vec<_>>());
    let windows = Loader::new(Windows::new(series).length(8).ahead(1));
    let (train, validation) = windows.validation_split(0.25).unwrap();
    let shaped = FromFn::new("shaped", |_, y| y.reshape(&[1, 1]));
    let model = Sequential::new().add(Flatten).add(Dense::new(1)).add(shaped);
    run(Trainer::builder(model).loss(MeanSquaredError).global_batch(8), &train, Some(&validation), 1)
}

/// What is said to a layer behind a convolution.
fn behind_conv(layer: impl Layer + 'static) -> String {
    self::layer("picture", Sequential::new().add(Conv2d::new(4, 3)).add(layer))
}

fn volumes() -> String {
    let x = Memory::new("x", [8, 8, 8, 1], Values::F32(vec![0.5; 8 * 512])).unwrap();
    let data = x.with("y", [], Values::I32([0, 1].repeat(4))).unwrap();
    let model = Sequential::new().add(Conv3d::new(2, 1)).add(Flatten).add(Dense::new(2));
    run(Trainer::builder(model).global_batch(8), &Loader::new(data), None, 1)
}

fn repeated() -> String {
    let data = labelled(|i| i % 3).batch(8).shuffle(1);
    let mut trainer = classes().replicas(1).adapter("cpu").build(&data.fields().unwrap()).unwrap();
    for _ in 0..2 {
        for batch in data.epoch(0).unwrap() {
            trainer.step(&batch.unwrap()).unwrap();
        }
    }
    trainer.notes().join("\n")
}

fn nothing_there(folder: &Path) -> String {
    let mut trainer = trained(&labelled(|i| i % 3));
    trainer.save_to(Saving::new(folder.join("typo"))).unwrap();
    trainer.resume().unwrap();
    trainer.notes().join("\n")
}

/// What is suggested after 4 of 100 rates.
fn searched() -> String {
    let (finder, found) = LearningRateFinder::new(1e-6, 1.0, 100);
    run(classes().callback(finder), &labelled(|i| i % 3), None, 1);
    assert_eq!(found.all().len(), 4);
    format!("{:?}", found.suggestion())
}

/// What is said to a trainer's own weights, under names with a prefix, that a plan loads.
fn planned(prefix: &str, plan: &Plan) -> String {
    let mut trainer = trained(&labelled(|i| i % 3));
    let weights = trainer.weights().unwrap().into_iter();
    let weights: Tensors = weights.map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect();
    match trainer.load_tensors(&weights, plan) {
        Ok(_) => trainer.notes().join("\n"),
        Err(error) => error.to_string(),
    }
}

fn opened(folder: &Path) -> String {
    let path = folder.join("model.onnx");
    trained(&labelled(|i| i % 3)).export_onnx(&path).unwrap();
    Predictor::open(&path).err().map_or_else(String::new, |error| error.to_string())
}

fn drawn() -> String {
    let drawn = AtomicU32::new(0);
    model(move |cx, x| {
        let noise = drawn.fetch_add(1, Ordering::Relaxed) as f32;
        let shifted = &x["x"] + cx.tape().constant(noise);
        cx.apply("dense", &Dense::new(1), &shifted)
    })
}
