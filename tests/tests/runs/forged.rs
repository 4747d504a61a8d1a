//! A checkpoint whose `trainer.json` says what no run can have done is refused before any work, and the error
//! names the field.

use std::path::Path;

use serde_json::{Value, json};
use unisono::checkpoint::{Store, list, load};
use unisono::{SavedRun, Trainer};
use unisono_tests::{loader, perceptron};

fn trainer(dir: &Path, batch: usize) -> Result<Trainer, unisono::Error> {
    let fields = loader(40, 5)?.fields()?;
    let mut trainer = perceptron(4).global_batch(batch).replicas(1).build(&fields)?;
    trainer.checkpoints(dir, 0)?;
    Ok(trainer)
}

/// Trains an epoch, and saves what it saved with another `trainer.json` and as another step.
fn forged(dir: &Path, step: u64, forge: &dyn Fn(&mut Value)) {
    let mut first = trainer(dir, 16).unwrap();
    first.fit(&loader(40, 5).unwrap(), None, 1).unwrap();
    drop(first);
    let (own, mut contents) = load(&list(dir).unwrap()[0].1).unwrap();
    assert_eq!(own, 3);
    forge(&mut contents.trainer);
    let mut store = Store::open(dir).unwrap();
    store.clear().unwrap();
    store.save(step, &contents).unwrap();
}

#[test]
fn numbers_that_no_run_can_have_are_named() {
    let huge = json!(u64::MAX);
    let cases: [(&str, &str, Value, &str); 9] = [
        ("settings", "/global_batch", huge.clone(), "settings.global_batch is 18446744073709551615"),
        ("settings", "/global_batch", json!(1u64 << 40), "settings.global_batch is 1099511627776"),
        ("settings", "/global_batch", json!(0), "settings.global_batch is 0, which is not in 1..=2147483647"),
        (
            "settings",
            "/shards",
            huge.clone(),
            "settings.shards is 18446744073709551615, which is not in 1..=65536",
        ),
        ("position", "/step", huge.clone(), "position.step is 18446744073709551615"),
        ("position", "/sample", huge.clone(), "position.sample is 18446744073709551615"),
        ("position", "/skipped", json!([9, 3]), "position.skipped is not ascending"),
        (
            "history",
            "/0/steps",
            huge.clone(),
            "history[0].steps is 18446744073709551615, which is not in 0..=3",
        ),
        ("running", "/samples", huge.clone(), "running.samples is 18446744073709551615"),
    ];
    for (section, field, value, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        forged(dir.path(), 3, &|trainer| {
            *trainer["sections"][section]["value"].pointer_mut(field).unwrap() = value.clone();
        });
        let error = SavedRun::newest(dir.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{section}{field}: {error}");
        let mut second = trainer(dir.path(), 16).unwrap();
        let before = second.state_sha256().unwrap();
        assert_eq!(second.resume().unwrap_err().to_string(), error);
        assert_eq!(second.force_resume().unwrap_err().to_string(), error);
        assert_eq!(second.state_sha256().unwrap(), before);
    }
}

#[test]
fn a_trainer_json_of_another_step_than_the_manifests_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    forged(dir.path(), 7, &|_| {});
    let mut second = trainer(dir.path(), 16).unwrap();
    let error = second.resume().unwrap_err().to_string();
    assert!(error.ends_with("step-00000007: trainer.json is of step 3, the manifest of step 7"), "{error}");
}

/// What a program asks for itself is refused like what a file says, not tried.
#[test]
fn a_batch_that_nothing_can_hold_is_an_error() {
    for batch in [0, 1 << 31, 1 << 40, usize::MAX] {
        let error =
            perceptron(4).global_batch(batch).replicas(1).build(&loader(40, 5).unwrap().fields().unwrap());
        let error = error.err().unwrap().to_string();
        assert!(error.starts_with("global batch: "), "{error}");
    }
    let fields = loader(40, 5).unwrap().fields().unwrap();
    let error = perceptron(4).samples_per_replica(usize::MAX).replicas(2).shards(2).build(&fields);
    let error = error.err().unwrap().to_string();
    assert!(error.starts_with("global batch: "), "{error}");
    // One that devices could count, but no memory holds, is refused by the memory that it needs.
    let error =
        perceptron(4).global_batch((1 << 31) - 1).replicas(1).build(&fields).err().unwrap().to_string();
    assert!(error.contains("a step of 2147483647 samples does not fit"), "{error}");
}
