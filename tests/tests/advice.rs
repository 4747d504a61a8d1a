//! What would train, and most likely not to what its author wants, is said.

use std::sync::{Arc, Mutex};

use unisono::data::{FieldSpec, Loader, Memory, Tokens, Values, Width};
use unisono::{
    BinaryCrossEntropyWithLogits, Conv2d, Dense, Embedding, Flatten, FromFn, Layer, Loss, Lstm, Observer,
    Optimizer, Relu, Sequential, Sgd, Sigmoid, Softmax, Trainer, Var,
};

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

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
fn parameters_that_no_loss_depends_on_are_noted() {
    let cut = || FromFn::new("cut", |_, x: &Var| x.detach());
    let model = || Sequential::new().add(Dense::new(4)).add(cut()).add(Dense::new(3));
    let expected = "no loss depends on 0.weight, 0.bias: training does not change them";
    assert_eq!(notes(model(), &[4], Sgd::new(0.1)), [expected]);
    // That a freeze keeps them is known.
    assert_eq!(notes(model(), &[4], Sgd::new(0.1).freeze(|name| name.starts_with("0."))), [""; 0]);
    let deep = (0..4).fold(Sequential::new(), |deep, _| deep.add(Dense::new(4))).add(cut());
    let notes = self::notes(deep.add(Dense::new(3)), &[4], Sgd::new(0.1));
    assert!(notes[0].contains("2.weight and 3 more: training"), "{notes:?}");
    let none = self::notes(Sequential::new().add(Relu), &[4], Sgd::new(0.1));
    assert_eq!(none, ["the model has no parameters: nothing is trained"]);
}

#[test]
fn a_shuffled_loader_under_a_stateful_model_is_noted() {
    let noted = |lanes: bool| {
        let tokens = Tokens::in_memory("text", vec![1; 40], Width::U8, 3).unwrap();
        let loader = Loader::new(tokens);
        let loader = if lanes { loader.lanes() } else { loader.shuffle(1) };
        let model =
            Sequential::new().add(Embedding::new(4, 2)).add(Lstm::new(2).stateful()).add(Dense::new(4));
        let notes = Notes::default();
        let builder = Trainer::builder(model).global_batch(4).shards(4).replicas(1).observer(notes.clone());
        let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
        trainer.fit(&loader, None, 1).unwrap();
        trainer.fit(&loader, None, 2).unwrap();
        let notes = notes.0.lock().unwrap();
        notes.iter().filter(|note| note.contains("Loader::lanes")).count()
    };
    assert_eq!([noted(false), noted(true)], [1, 0]);
}

#[test]
fn a_freeze_of_nothing_or_of_everything_is_noted() {
    let all = notes(picture_model(), &[3, 12, 10], Sgd::new(0.1).freeze(|_| true));
    assert!(all[0].contains("matches all parameters"), "{all:?}");
    let none = notes(picture_model(), &[3, 12, 10], Sgd::new(0.1).freeze(|name| name == "encoder"));
    assert!(none[0].contains("matches none of the 4 parameters: 0.weight"), "{none:?}");
}
