//! What would train, and most likely not to what its author wants, is said.

use unisono::data::{FieldSpec, Loader, Memory, Values};
use unisono::{
    BinaryCrossEntropyWithLogits, Conv2d, Dense, Flatten, Layer, Loss, Optimizer, Relu, Sequential, Sgd,
    Sigmoid, Softmax, Trainer,
};

/// Returns the notes on a model for pictures of this shape.
fn notes(model: impl Layer + 'static, shape: &[usize], optimizer: impl Into<unisono::Chain>) -> Vec<String> {
    let data = Memory::labelled(vec![0.5; shape.iter().product()], shape, [0]).unwrap();
    let fields: Vec<FieldSpec> = Loader::new(data).fields().unwrap();
    let builder = Trainer::builder(model).optimizer(optimizer).global_batch(8).replicas(1);
    builder.build(&fields).unwrap().notes().to_vec()
}

fn picture_model() -> Sequential {
    Sequential::new().add(Conv2d::new(4, 3).padding(1)).add(Relu).add(Flatten).add(Dense::new(3))
}

#[test]
fn a_model_that_is_as_it_should_be_has_no_notes() {
    assert_eq!(notes(picture_model(), &[3, 12, 10], Sgd::new(0.1)), [""; 0]);
    let frozen = Sgd::new(0.1).freeze(|name| name.starts_with("0."));
    assert_eq!(notes(picture_model(), &[3, 12, 10], frozen), [""; 0]);
}

#[test]
fn softmax_before_cross_entropy_is_noted() {
    let model = Sequential::new().add(Dense::new(3)).add(Softmax);
    let notes = notes(model, &[4], Sgd::new(0.1));
    assert!(notes[0].contains("ends in 1 (softmax), and the loss cross-entropy takes logits"), "{notes:?}");
    // Inside of another layer it is found as well.
    let inner = Sequential::new().add(Sequential::new().add(Dense::new(3)).add(Softmax));
    assert_eq!(self::notes(inner, &[4], Sgd::new(0.1)).len(), 1);
}

#[test]
fn sigmoid_before_its_loss_is_noted() {
    let data = Memory::new("x", [4], Values::F32(vec![0.5; 4])).unwrap();
    let data = data.with("y", [1], Values::F32(vec![1.0])).unwrap();
    let model = Sequential::new().add(Dense::new(1)).add(Sigmoid);
    let builder = Trainer::builder(model).loss(BinaryCrossEntropyWithLogits).global_batch(8).replicas(1);
    let trainer = builder.build(&Loader::new(data).fields().unwrap()).unwrap();
    assert!(trainer.notes()[0].contains("(sigmoid), and the loss"), "{:?}", trainer.notes());
    assert!(trainer.notes()[0].contains(BinaryCrossEntropyWithLogits.name()));
}

#[test]
fn pictures_with_their_channels_last_are_noted() {
    let notes = notes(picture_model(), &[12, 10, 3], Sgd::new(0.1));
    assert!(
        notes[0].contains("takes 12 channels of 10 x 3") && notes[0].contains("channels_first"),
        "{notes:?}"
    );
}

#[test]
fn a_freeze_of_nothing_or_of_everything_is_noted() {
    let all = notes(picture_model(), &[3, 12, 10], Sgd::new(0.1).freeze(|_| true));
    assert!(all[0].contains("matches all parameters"), "{all:?}");
    let none = notes(picture_model(), &[3, 12, 10], Sgd::new(0.1).freeze(|name| name == "encoder"));
    assert!(none[0].contains("matches none of the 4 parameters: 0.weight"), "{none:?}");
}
