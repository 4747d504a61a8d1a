//! Files of weights that Keras wrote (`fixtures/keras.py`) load, and the models predict what Keras predicts.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::checkpoint::{Keras, Plan, Tensors, parse_keras, parse_tensors, read_keras};
use unisono::data::{Loader, Memory, Values};
use unisono::{
    BatchNorm, Context, Conv1d, Conv2d, ConvTranspose2d, Dense, DepthwiseConv2d, Embedding, Flatten, Gru,
    LayerNorm, Lstm, Model, MultiHeadAttention, OUTPUT, Outputs, Predictor, Relu, SeparableConv2d, SimpleRnn,
    Trainer, Var,
};

#[derive(Deserialize)]
struct Case {
    x: Vec<f64>,
    y: Vec<f64>,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/keras").join(name)
}

fn case(name: &str) -> Case {
    serde_json::from_slice(&std::fs::read(file(&format!("{name}.json"))).unwrap()).unwrap()
}

const FORMATS: [&str; 4] = ["weights.h5", "keras", "saved.h5", "h5"];

/// Loads every format of a model on one and on two replicas.
fn predicts_as_keras(name: &str, keras: &Keras, samples: Memory, net: fn(&mut Context, &Var) -> Var) {
    let expected = case(name).y;
    let loader = Loader::new(samples).batch(3);
    let mut first: Option<(Tensors, Vec<f32>)> = None;
    for format in FORMATS {
        let weights = read_keras(file(&format!("{name}.{format}")), keras).unwrap();
        for replicas in 1..=2 {
            let model = Model::new(move |cx, x| Outputs::new().with(OUTPUT, &net(cx, &x["x"])));
            let builder = Predictor::builder().replicas(replicas).batch(3).shards(3);
            let fields = loader.fields().unwrap();
            let mut predictor = builder.open_tensors(model, &fields, &weights).unwrap();
            let found = predictor.predict(&loader).unwrap().get(OUTPUT).unwrap().values.clone();
            assert_eq!(found.len(), expected.len());
            let largest = expected.iter().fold(1.0_f64, |largest, y| largest.max(y.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off <= 1e-6 * largest, "{name}.{format}: {found}, expected {expected}");
            }
            let (tensors, values) = first.get_or_insert_with(|| (weights.clone(), found.clone()));
            assert_eq!((&*tensors, &*values), (&weights, &found), "{name}.{format}");
        }
    }
}

/// Images come as `[H, W, C]` in Keras.
fn images([h, w, c]: [usize; 3], x: &[f64]) -> Memory {
    let at = |image: &[f64], channel: usize, pixel: usize| image[pixel * c + channel] as f32;
    let turned = x.chunks(h * w * c).flat_map(|image| {
        (0..c).flat_map(move |channel| (0..h * w).map(move |pixel| at(image, channel, pixel)))
    });
    Memory::new("x", [c, h, w], Values::F32(turned.collect())).unwrap()
}

#[test]
fn convolutions_and_norms() {
    let keras = Keras::new().flattened("head/kernel", [9, 6, 2]);
    predicts_as_keras("convolutions", &keras, images([8, 6, 2], &case("convolutions").x), |cx, x| {
        let h = cx.apply("first", &Conv2d::new(4, 3).padding(1), x);
        let h = cx.apply("norm", &BatchNorm::new().epsilon(1e-3), &h);
        let h = cx.apply("relu", &Relu, &h);
        let h = cx.apply("depthwise", &DepthwiseConv2d::new(3).multiplier(2), &h);
        let h = cx.apply("separable", &SeparableConv2d::new(3, [3, 2]), &h);
        let h = cx.apply("up", &ConvTranspose2d::new(2, [3, 2]).stride(2), &h);
        let h = cx.apply("flat", &Flatten, &h);
        cx.apply("head", &Dense::new(3), &h)
    });
}

#[test]
fn embeddings_and_recurrent_layers() {
    let ids = case("sequences").x.iter().map(|&x| x as i32).collect();
    let samples = Memory::new("x", [5], Values::I32(ids)).unwrap();
    predicts_as_keras("sequences", &Keras::new(), samples, |cx, x| {
        let h = cx.apply("words", &Embedding::new(7, 4), x);
        let h = cx.apply("near", &Conv1d::new(4, 3).padding(1), &h.transpose(1, 2)).transpose(1, 2);
        let h = cx.apply("lstm", &Lstm::new(3), &h);
        let h = cx.apply("both", &Gru::new(2).bidirectional(), &h);
        let h = cx.apply("simple", &SimpleRnn::new(3).last(), &h);
        cx.apply("head", &Dense::new(2).no_bias(), &h)
    });
}

#[test]
fn attention_and_models_within_models() {
    let x = case("attention").x.iter().map(|&x| x as f32).collect();
    let samples = Memory::new("x", [5, 4], Values::F32(x)).unwrap();
    predicts_as_keras("attention", &Keras::new(), samples, |cx, x| {
        let h = cx.apply("attention", &MultiHeadAttention::new(2), x);
        let h = cx.apply("norm", &LayerNorm::new().epsilon(1e-5), &(h + x));
        let h = cx.apply("inner.dense", &Dense::new(4), &h);
        cx.apply("head", &Dense::new(2), &h)
    });
}

/// A trainer loads the file as any other weights, under other names.
#[test]
fn a_trainer_continues_from_keras() {
    let weights = read_keras(file("convolutions.weights.h5"), &Keras::new()).unwrap();
    let data = Memory::labelled(vec![0.5; 4 * 108], [108], vec![0, 1, 2, 0]).unwrap();
    let train = Loader::new(data);
    let builder = Trainer::builder(unisono::Sequential::new().add(Dense::new(3))).replicas(2).shards(2);
    let mut trainer = builder.global_batch(4).build(&train.fields().unwrap()).unwrap();
    let plan = Plan::new()
        .ignore("first.*")
        .ignore("norm.*")
        .ignore("depthwise.*")
        .ignore("separable.*")
        .ignore("up.*");
    let report = trainer.load_tensors(&weights, &plan.rename("head.*", "0.*")).unwrap();
    assert_eq!(report.loaded, ["0.bias", "0.weight"]);
    assert_eq!(trainer.weights().unwrap()["0.weight"], weights["head.weight"]);
    trainer.fit(&train, None, 1).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let problem = |name: &str, keras: &Keras| read_keras(file(name), keras).unwrap_err().to_string();
    let refused = problem("reset_before.weights.h5", &Keras::new());
    assert!(
        refused.contains("no weights by Keras: gru/cell: it is a GRU with reset_after=False"),
        "{refused}"
    );
    let refused = problem("convolutions.keras", &Keras::new().flattened("head/kernel", [8, 6, 2]));
    assert!(refused.contains("head/kernel takes 108 numbers, and not images of [8, 6, 2]"), "{refused}");
    let refused = problem("convolutions.json", &Keras::new());
    assert!(refused.contains("convolutions.json: no weights by Keras: it is a text in JSON"), "{refused}");
    // Given to the reader of safetensors, each is named by its content.
    for (name, kind) in [("attention.h5", "HDF5"), ("attention.keras", "Keras 3 model")] {
        let bytes = std::fs::read(file(name)).unwrap();
        let refused = parse_tensors(Path::new("w"), &bytes).unwrap_err().to_string();
        assert!(refused.contains(kind) && refused.contains("checkpoint::read_keras"), "{refused}");
    }
}

/// Bytes changed: an error, or tensors. Lengths cut: an error, or the same tensors if nothing is missing.
#[test]
fn changed_files_are_errors() {
    let step = if std::env::var_os("UNISONO_LONG").is_some() { 7 } else { 911 };
    for name in ["attention.keras", "sequences.weights.h5", "convolutions.h5", "attention.saved.h5"] {
        let file = std::fs::read(file(name)).unwrap();
        let read = |path: &str, file: &[u8]| parse_keras(Path::new(path), file, &Keras::new());
        let whole = read("whole.h5", &file).unwrap();
        for at in (0..file.len()).step_by(step) {
            let mut changed = file.clone();
            for value in [0, 0xFF, file[at] ^ 1, file[at].wrapping_add(1)] {
                changed[at] = value;
                let _ = read("changed.h5", &changed);
            }
            match read("cut.h5", &file[..at]) {
                Ok(tensors) => assert_eq!(tensors, whole, "{name} cut at {at}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("cut.h5: no weights by Keras: "), "{name} cut at {at}: {text}");
                }
            }
        }
    }
}
