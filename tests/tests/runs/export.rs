//! An exported model consists of two files. The model that is built again from them makes the same
//! predictions.

use std::fs;

use unisono::checkpoint::{Plan, WeightPrecision};
use unisono::data::{Bag, Draws, Loader, Memory, Vocabulary};
use unisono::{
    BatchNorm, Conv2d, CsvLog, Dense, Dropout, ExportedModel, Flatten, FromFn, Layer, MaxPool2d, Plot,
    Predictor, Relu, Residual, Sequential, Trainer,
};

const SAMPLES: usize = 24;

fn data() -> Loader {
    let mut draws = Draws::of(1, "export", "noise", 0, 0);
    let pixels: Vec<f32> = (0..SAMPLES * 64).map(|_| draws.range(-1.0, 1.0)).collect();
    let labels: Vec<i32> = (0..SAMPLES).map(|sample| (sample % 3) as i32).collect();
    Loader::new(Memory::labelled(pixels, [1, 8, 8], labels).unwrap())
}

fn model() -> Sequential {
    let inner = Sequential::new().add(Conv2d::new(4, 3).padding(1)).add(BatchNorm::new()).add(Relu);
    let features =
        Sequential::new().add(Residual::new(inner).shortcut(Conv2d::new(4, 1))).add(MaxPool2d::new(2));
    features.add(Flatten).add(Dropout::new(0.2)).add(Dense::new(3))
}

fn trainer(model: impl Layer + 'static, seed: u64) -> Trainer {
    let builder = Trainer::builder(model).global_batch(8).seed(seed).replicas(2).timeline();
    builder.build(&data().fields().unwrap()).unwrap()
}

#[test]
fn an_exported_model_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.safetensors");
    let mut first = trainer(model(), 1);
    first.fit(&data(), None, 2).unwrap();
    let expected = first.predict(&data()).unwrap();
    let exported = first.export(&path, WeightPrecision::F32).unwrap();
    assert_eq!(exported.description, Some(dir.path().join("small.json")));

    let open = ExportedModel::open(&path).unwrap();
    assert_eq!((&*open.input, &*open.output, &*open.loss), (&[1, 8, 8][..], &[3][..], "cross-entropy"));
    let mut second = trainer(open.layer(), 2);
    assert_ne!(second.predict(&data()).unwrap(), expected, "before loading, its weights are its own");
    second.load_model(&path, &Plan::new()).unwrap();
    assert_eq!(second.predict(&data()).unwrap(), expected);

    // As f16 the file is smaller, and the predictions are nearly the same.
    let half = dir.path().join("half.safetensors");
    first.export(&half, WeightPrecision::F16).unwrap();
    assert!(fs::metadata(&half).unwrap().len() < fs::metadata(&path).unwrap().len());
    let mut third = trainer(ExportedModel::open(&half).unwrap().layer(), 3);
    let report = third.load_model(&half, &Plan::new()).unwrap();
    assert_eq!(report.converted.len(), report.loaded.len());
    let norm = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    let apart: Vec<f32> = third.predict(&data()).unwrap().iter().zip(&expected).map(|(a, b)| a - b).collect();
    assert!(
        norm(&apart) > 0.0 && norm(&apart) < 2e-3 * norm(&expected),
        "{}",
        norm(&apart) / norm(&expected)
    );
}

/// The file says how large the inputs of the run's first samples were, which a resumed run has kept.
#[test]
fn an_export_after_a_resume_has_the_bytes_of_the_run_that_went_on() {
    let dir = tempfile::tempdir().unwrap();
    let files = |name: &str| {
        let path = dir.path().join(name).with_extension("safetensors");
        (path.clone(), path.with_extension("json"))
    };
    let mut first = trainer(model(), 1);
    first.checkpoints(dir.path(), 0).unwrap();
    first.fit(&data(), None, 1).unwrap();
    let (weights, json) = files("first");
    first.export(&weights, WeightPrecision::F32).unwrap();
    drop(first);
    let text = fs::read_to_string(&json).unwrap();
    let scale: serde_json::Value = serde_json::from_str(&text).unwrap();
    let scale = &scale["description"]["scale"];
    // One batch of 8 pictures; the numbers are uniform in -1..1.
    let near = |name: &str, of: f64| (scale[name].as_f64().unwrap() - of).abs() < 0.1;
    assert_eq!(scale["values"], 8 * 64, "{text}");
    assert!(near("mean", 0.0) && near("deviation", 1.0 / 3_f64.sqrt()), "{scale}");

    let mut second = trainer(model(), 1);
    second.checkpoints(dir.path(), 0).unwrap();
    second.resume().unwrap().unwrap();
    let (other_weights, other_json) = files("second");
    second.export(&other_weights, WeightPrecision::F32).unwrap();
    assert_eq!(fs::read(&other_weights).unwrap(), fs::read(&weights).unwrap());
    let other = fs::read_to_string(&other_json).unwrap();
    assert_eq!(other.replace("second.safetensors", "first.safetensors"), text);
    // It tells of other inputs, too.
    let large = data().map("large", |sample, _| {
        sample.f32_mut("x").into_iter().flatten().for_each(|x| *x *= 100.0);
    });
    second.predict(&large).unwrap();
    let notes = second.notes().join("\n");
    assert!(notes.contains("in a batch of the prediction"), "{notes}");
}

/// A vocabulary that is attached to the model is there where the model predicts.
#[test]
fn what_is_attached_comes_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.safetensors");
    let (texts, labels) = (["a good film", "a \"bad\" film", "good"], [1, 0, 1]);
    let vocabulary = Vocabulary::words().ngrams(2).learn(texts).unwrap();
    let train = Loader::new(vocabulary.bags(texts, labels, Bag::TfIdf).unwrap());
    let builder = || Trainer::builder(Dense::new(2)).seed(1).replicas(1).global_batch(3);
    let first = builder().attach("vocabulary", vocabulary.to_json()).attach("note", "");
    let mut first = first.build(&train.fields().unwrap()).unwrap();
    let mut plain = builder().build(&train.fields().unwrap()).unwrap();
    first.fit(&train, None, 1).unwrap();
    plain.fit(&train, None, 1).unwrap();
    assert_eq!(first.state_sha256().unwrap(), plain.state_sha256().unwrap());
    first.export(&path, WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::open(&path).unwrap();
    let known = Vocabulary::from_json(predictor.attached("vocabulary").unwrap()).unwrap();
    assert_eq!(known, vocabulary);
    assert_eq!((predictor.attached("note"), predictor.attached("notes")), (Some(""), None));
    let found = predictor.predict_array(&known.bag("a good film", Bag::TfIdf)).unwrap();
    assert_eq!(found.values, first.predict(&train).unwrap()[..2]);
    assert_eq!(ExportedModel::open(&path).unwrap().attached.len(), 2);
    // Without an attachment, the file is as it was.
    plain.export(&path, WeightPrecision::F32).unwrap();
    assert!(!fs::read_to_string(path.with_extension("json")).unwrap().contains("attached"));
    // What could not be exported is refused before the training.
    let own = FromFn::new("own", |cx, x| cx.apply("out", &Dense::new(2), x));
    let fields = train.fields().unwrap();
    let error = Trainer::builder(own).attach("a", "b").build(&fields).err().unwrap().to_string();
    assert!(error.starts_with("attach: the model has layers of one's own"), "{error}");
    let error = builder().attach("a", "b".repeat(9 << 20)).build(&fields).err().unwrap().to_string();
    assert!(error.starts_with("attach: 9437192 bytes are attached"), "{error}");
}

#[test]
fn a_model_that_cannot_be_described_or_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    // A layer that the user defines has no description, but its weights are exported.
    let own = FromFn::new("own", |cx, x| cx.apply("out", &Dense::new(3), &x.flatten()));
    let mut first = trainer(own, 1);
    let exported = first.export(&path, WeightPrecision::F32).unwrap();
    assert_eq!(exported.description, None);
    assert!(ExportedModel::open(&path).unwrap_err().to_string().contains("model.json: cannot read"));
    // A model of a later version is an error that names the unknown layer.
    trainer(model(), 1).export(&path, WeightPrecision::F32).unwrap();
    let json = path.with_extension("json");
    let later = fs::read_to_string(&json).unwrap().replace("\"flatten\"", "\"unfold\"");
    fs::write(&json, later).unwrap();
    let error = ExportedModel::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("model.json: no model that this version knows: unknown variant `unfold`"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn files_replace_links_and_leave_pipes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "precious").unwrap();
    let path = dir.path().join("model.onnx");
    let mut trainer = trainer(Sequential::new().add(Flatten).add(Dense::new(3)), 1);
    let export_once = |trainer: &mut Trainer| {
        trainer.export_onnx(&path).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file() && fs::metadata(&path).unwrap().len() > 100);
        fs::remove_file(&path).unwrap();
    };
    std::os::unix::fs::symlink(&outside, &path).unwrap();
    export_once(&mut trainer);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = trainer.export_onnx(&path).unwrap_err().to_string();
    assert!(error.contains("model.onnx") && error.contains("is not replaced"), "{error}");
    fs::remove_file(&path).unwrap();
    // That a disk takes no file is no refusal: it may be mended.
    let error = trainer.export_onnx(outside.join("model.onnx")).unwrap_err();
    assert!(matches!(error, unisono::Error::Checkpoint(_)) && !error.is_refusal(), "{error}");
    std::os::unix::fs::symlink(&outside, &path).unwrap();
    trainer.write_trace(&path).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read_to_string(&outside).unwrap(), "precious");
}

/// Two outputs of one place would be one output less, which a run must not find out when it is done.
#[test]
fn two_outputs_of_a_run_do_not_have_one_place() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let fields = data().fields().unwrap();
    let builder = || Trainer::builder(Sequential::new().add(Flatten).add(Dense::new(3))).replicas(1);
    let both = builder().observer(CsvLog::new(at("log"))).observer(Plot::new(at("log")));
    let error = both.build(&fields).err().unwrap().to_string();
    assert!(error.contains("CsvLog and ") && error.contains("Plot both write "), "{error}");
    let mut trainer = builder().observer(Plot::new(at("run/model.json"))).build(&fields).unwrap();
    let error = trainer.checkpoints(&at("run"), 0).unwrap_err().to_string();
    assert!(error.contains("the run's directory and ") && error.contains("model.json"), "{error}");
    assert!(!at("run").exists() && !at("log").exists());
    trainer.checkpoints(&at("other"), 0).unwrap();
    #[cfg(unix)]
    {
        let full = builder().observer(Plot::new("/dev/full")).build(&fields).err().unwrap().to_string();
        assert!(full.contains("Plot: /dev/full: is a device"), "{full}");
    }
}
