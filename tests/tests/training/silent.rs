//! What is most likely a mistake is never accepted in silence. What models and freezes are noted for is in
//! `advice.rs`, fits that have nothing to do are in `tests/tests/training/callbacks`.

use unisono::data::{Loader, Memory, Values};
use unisono::{Dense, MeanSquaredError, Trainer};
use unisono_tests::{loader, perceptron};

use crate::Notes;

#[test]
fn a_batch_size_that_a_fit_does_not_use_is_noted_once() {
    let notes = Notes::default();
    let train = loader(50, 5).unwrap();
    let builder = perceptron(8).global_batch(16).replicas(1).observer(notes.clone());
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train.clone().batch(16), None, 1).unwrap();
    assert!(!notes.has("batch size"));
    trainer.fit(&train.clone().batch(8), Some(&train.clone().batch(4)), 3).unwrap();
    let told = notes.all("batch size");
    let ignored = |own: u32| {
        format!(
            "note: the loader's batch size of {own} is ignored: a fit uses the trainer's global batch of 16"
        )
    };
    assert_eq!(told, [ignored(8), ignored(4)]);
    trainer.fit(&train.clone().batch(8), None, 4).unwrap();
    assert_eq!(notes.all("batch size").len(), 2);
}

#[test]
fn a_validation_loss_that_is_not_finite_is_noted() {
    let of = |x: f32| {
        Loader::new(
            Memory::new("x", [1], Values::F32(vec![x; 8]))
                .unwrap()
                .with("y", [1], Values::F32(vec![1.0; 8]))
                .unwrap(),
        )
    };
    let (train, held_out, notes) = (of(0.5), of(1e30), Notes::default());
    let builder = Trainer::builder(Dense::new(1)).loss(MeanSquaredError).global_batch(8).replicas(1);
    let mut trainer = builder.observer(notes.clone()).build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, Some(&train), 1).unwrap();
    assert!(!notes.has("validation loss"));
    trainer.fit(&train, Some(&held_out), 2).unwrap();
    assert_eq!(notes.all("validation loss"), ["warning: the validation loss of epoch 1 is inf"]);
}
