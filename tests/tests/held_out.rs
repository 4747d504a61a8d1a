//! The held-out samples are checked before the first step, not after the first epoch.

use unisono::data::{Loader, Memory, Values};
use unisono::{Error, Trainer};
use unisono_tests::{FEATURES, blobs, loader, perceptron};

fn build(train: &Loader) -> Trainer {
    perceptron(4).global_batch(8).replicas(1).build(&train.fields().unwrap()).unwrap()
}

/// Returns the error of a fit for held-out samples that do not fit the model.
fn refused(train: &Loader, held_out: Loader) -> String {
    let mut trainer = build(train);
    let error = trainer.fit(train, Some(&held_out), 2).unwrap_err();
    assert!(matches!(error, Error::Validation(_)), "{error:?}");
    assert_eq!((trainer.steps(), trainer.history().len()), (0, 0), "{error}");
    // The error does not change the run.
    trainer.fit(train, None, 1).unwrap();
    error.to_string()
}

#[test]
fn samples_that_do_not_fit_are_told_before_the_first_step() {
    let train = loader(20, 1).unwrap();
    let labels = vec![0; 10];
    let narrow = Memory::labelled(vec![0.5; 10 * 5], [5], labels.clone()).unwrap();
    assert_eq!(
        refused(&train, Loader::new(narrow)),
        "validation data: field \"x\": expected [B, 6], got [B, 5]"
    );
    let unlabelled = Memory::new("x", [FEATURES], Values::F32(vec![0.5; 10 * FEATURES])).unwrap();
    assert_eq!(
        refused(&train, Loader::new(unlabelled)),
        "validation data: field \"y\": expected [B] i32, got no such field"
    );
    let none = Memory::labelled(vec![], [FEATURES], vec![]).unwrap();
    assert_eq!(refused(&train, Loader::new(none)), "validation data: source: it has no samples");
    assert_eq!(
        refused(&train, loader(5, 2).unwrap().drop_last(true)),
        "validation data: drop_last: 5 samples never fill a batch of 8"
    );
    let broken = loader(5, 2).unwrap().try_map("normalise", |_, _| Err("no mean".into()));
    let message = refused(&train, broken);
    assert!(message.starts_with("validation data: sample 0"), "{message}");
    assert!(message.ends_with("map 'normalise': no mean"), "{message}");

    let weighted = |n: usize| blobs(n, 1).unwrap().with("w", [], Values::F32(vec![1.0; n])).unwrap();
    assert_eq!(
        refused(&Loader::new(weighted(20)), loader(10, 2).unwrap()),
        "validation data: field \"w\": expected [B], got no such field"
    );
    // An additional field is no error.
    build(&train).fit(&train, Some(&Loader::new(weighted(10))), 1).unwrap();
}

#[test]
fn a_bad_sample_is_told_to_be_one_of_those_held_out() {
    let train = loader(20, 1).unwrap();
    let mut x = vec![0.5; 10 * FEATURES];
    x[3 * FEATURES] = f32::NAN;
    let held_out = Loader::new(Memory::labelled(x, [FEATURES], vec![0; 10]).unwrap());
    let error = build(&train).fit(&train, Some(&held_out), 1).unwrap_err().to_string();
    assert_eq!(error, "validation data: sample 3 (epoch 1, position 3): field \"x\" holds NaN");
}
