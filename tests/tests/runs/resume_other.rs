//! A checkpoint of another model is refused with a list of all that does not fit. The trainer stays as it is.

use std::path::Path;

use unisono::data::{Loader, Memory};
use unisono::{Adam, Dense, Relu, Sequential, Sgd, Trainer};

fn data() -> Loader {
    let pixels: Vec<f32> = (0..16 * 6).map(|i| (i % 7) as f32 / 7.0).collect();
    let labels: Vec<i32> = (0..16).map(|i| i % 3).collect();
    Loader::new(Memory::labelled(pixels, [6], labels).unwrap())
}

fn trainer(dir: &Path, model: Sequential) -> Trainer {
    let builder = Trainer::builder(model).optimizer(Adam::new(0.01)).global_batch(8).replicas(1);
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer
}

#[test]
fn everything_that_does_not_fit_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let model = Sequential::new().add(Dense::new(5)).add(Relu).add(Dense::new(3));
    trainer(dir.path(), model).fit(&data(), None, 1).unwrap();

    let other = Sequential::new().add(Dense::new(4)).add(Dense::new(3)).add(Relu);
    let mut other = trainer(dir.path(), other);
    let before = other.state_sha256().unwrap();
    let error = other.resume().unwrap_err().to_string();
    for words in [
        "does not fit the model and its optimizer",
        "missing: \"1.weight\", \"1.bias\", \"1.weight/exp_avg\"",
        "unexpected: \"2.bias\"",
        "size mismatch for 0.bias: F32[5] in the file, F32[4] in the model",
        "size mismatch for 0.weight: F32[5, 6] in the file, F32[4, 6] in the model",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(other.force_resume().is_err(), "that cannot be forced");
    assert_eq!(other.state_sha256().unwrap(), before);
}

#[test]
fn another_optimizer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = || Sequential::new().add(Dense::new(3));
    trainer(dir.path(), model()).fit(&data(), None, 1).unwrap();
    let builder = Trainer::builder(model()).optimizer(Sgd::new(0.01)).global_batch(8).replicas(1);
    let mut other = builder.build(&data().fields().unwrap()).unwrap();
    other.checkpoints(dir.path(), 0).unwrap();
    let error = other.resume().unwrap_err().to_string();
    assert!(error.ends_with("the optimizer of the run is adam, not sgd"), "{error}");
}
