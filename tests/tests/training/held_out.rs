//! The held-out samples are checked before the first step, not after the first epoch.

use unisono::data::{Loader, Memory, Values};
use unisono::{AdamW, CrossEntropy, Dense, Embedding, Error, Model, Outputs, Trainer};
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
        "validation data: field \"x\": expected [B, 6], got [B, 5] (a program for this length: the model has \
         0.weight [4, 5] for samples of this length, and 0.weight [4, 6] for the longest)"
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

/// Training and validation data that number their classes otherwise are refused, by the names of the classes:
/// 1 was "dog" in one and "fox" in the other, and accuracy half of what it is.
#[test]
fn classes_that_are_numbered_otherwise_are_refused_by_name() {
    let named = |names: &[&str]| Loader::new(blobs(20, 1).unwrap().with_classes("y", names.to_vec()));
    let (train, other) = (named(&["cat", "dog", "fox"]), named(&["cat", "fox"]));
    let wanted = "classes: field 'y': 1 is class \"fox\" in the validation data, and class \"dog\" in the training data";
    let mut trainer = build(&train);
    let error = trainer.fit(&train, Some(&other), 1).unwrap_err().to_string();
    assert!(error.starts_with(wanted), "{error}");
    assert_eq!(trainer.steps(), 0);
    // Fewer classes with the same numbers are none, and so are data that do not know their classes.
    trainer.fit(&train, Some(&named(&["cat", "dog"])), 1).unwrap();
    trainer.fit(&train, Some(&loader(20, 2).unwrap()), 2).unwrap();
    // An evaluation compares with the data of the fit.
    let error = trainer.evaluate(&other).unwrap_err().to_string();
    assert!(error.starts_with(&wanted.replace("validation", "evaluated")), "{error}");
    assert!(trainer.evaluate(&train).is_ok());
    // A prediction reads no labels.
    assert!(trainer.predict(&other).is_ok());
}

#[test]
fn categories_that_are_numbered_otherwise_are_refused_in_predictions() {
    let cities = |names: &[&str], ids: &[i32]| {
        let labels = ids.iter().map(|id| id % 2).collect::<Vec<i32>>();
        let memory = Memory::new("city", [], Values::I32(ids.to_vec())).unwrap();
        let memory = memory.with("y", [], Values::I32(labels)).unwrap();
        Loader::new(memory.with_classes("city", names.to_vec()))
    };
    let train = cities(&["Bern", "Oslo", "Rome"], &[0, 1, 2, 0, 1, 2]);
    let model = Model::new(|cx, x| {
        let city = cx.apply("city", &Embedding::new(3, 4), &x["city"]);
        Outputs::new().with("sold", &cx.apply("sold", &Dense::new(2), &city))
    });
    let builder = Trainer::builder(model)
        .loss_between("sold", "y", CrossEntropy::new(), 1.0)
        .optimizer(AdamW::new(0.01));
    let builder = builder.global_batch(2).replicas(1);
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 1).unwrap();
    assert!(trainer.predict(&cities(&["Bern", "Oslo"], &[1, 0])).is_ok());
    let error = trainer.predict(&cities(&["Bern", "Rome"], &[1, 0])).unwrap_err().to_string();
    let wanted = "classes: field 'city': 1 is class \"Rome\" in the predicted data, and class \"Oslo\"";
    assert!(error.starts_with(wanted), "{error}");
}
