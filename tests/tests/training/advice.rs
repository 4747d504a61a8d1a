//! What would train, and most likely not to what its author wants, is said.

use std::sync::{Arc, Mutex};

use unisono::data::{Field, FieldSpec, Loader, Memory, Sample, Tokens, Values, Width};
use unisono::{
    BatchNorm, BinaryCrossEntropyWithLogits, Context, Conv2d, CrossEntropy, Dense, Embedding, Flatten,
    FromFn, Layer, Loss, Lstm, Model, Observer, Optimizer, Outputs, Predictor, Relu, Sequential, Sgd,
    Sigmoid, Softmax, Trainer, Var,
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

/// As a function of one's own, behind a reshape, for one of several losses.
#[test]
fn an_activation_that_is_no_layer_is_noted() {
    let ends = |end: fn(&Var) -> Var| {
        let model = Sequential::new().add(Dense::new(3)).add(FromFn::new("end", move |_, x: &Var| end(x)));
        notes(model, &[4], Sgd::new(0.1))
    };
    for (end, name) in [
        ((|x| x.softmax()) as fn(&Var) -> Var, "softmax"),
        (|x| x.softmax().reshape(&[3, 1]).reshape(&[3]), "softmax"),
        (|x| x.exp() / x.exp().sum_keep(&[-1]), "softmax"),
        (|x| x.sigmoid(), "sigmoid"),
    ] {
        let notes = ends(end);
        let text = format!(
            "the model's output \"output\" is a {name}, and the loss cross-entropy takes logits: it computes softmax \
             itself, so leave it out"
        );
        assert_eq!(notes, [text]);
    }
    // What is computed further is no softmax, nor is its logarithm, of which the softmax is the same.
    for end in
        [(|x| x.log_softmax()) as fn(&Var) -> Var, |x| x.softmax() * 2.0, |x| x.exp() / x.sum_keep(&[-1])]
    {
        assert_eq!(ends(end), [""; 0]);
    }
    let row = Sample::new().with("x", Field::f32([4], [0.0; 4])).with("a", Field::i32([], [0]));
    let two = Model::new(|cx, x| {
        let y = cx.apply("y", &Dense::new(3), &x["x"]);
        Outputs::new().with("a", &y.softmax()).with("b", &y)
    });
    let row = row.with("b", Field::i32([], [0]));
    let builder = Trainer::builder(two).loss_of("a", CrossEntropy::new(), 1.0);
    let builder = builder.loss_of("b", CrossEntropy::new(), 1.0).global_batch(8).replicas(1);
    let notes = builder.build(&row.specs()).unwrap().notes().to_vec();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("the model's output \"a\" is a softmax"), "{notes:?}");
}

#[test]
fn statistics_that_move_beside_frozen_parameters_are_noted() {
    let model = || Sequential::new().add(Dense::new(4)).add(BatchNorm::new()).add(Dense::new(3));
    let is_base = |name: &str| name.starts_with("0.") || name.starts_with("1.");
    let moved = notes(model(), &[4], Sgd::new(0.1).freeze(is_base));
    assert_eq!(moved.len(), 1);
    assert!(moved[0].starts_with("training changes 1.running_mean, 1.running_var, although"), "{moved:?}");
    assert_eq!(notes(model(), &[4], Sgd::new(0.1)), [""; 0]);
    assert_eq!(notes(model(), &[4], Sgd::new(0.1).freeze(|name| name == "1.weight")), [""; 0]);
    let fields = Loader::new(Memory::labelled(vec![0.5; 4], [4], [0]).unwrap()).fields().unwrap();
    for kept in [true, false] {
        let builder = Trainer::builder(model()).optimizer(Sgd::new(0.1).freeze(is_base)).global_batch(8);
        let built = builder.freeze_statistics(move |name| kept && is_base(name)).replicas(1).build(&fields);
        assert!(built.unwrap().notes().iter().all(|note| !note.contains("training changes")));
    }
}

#[test]
fn predictions_in_another_order_are_noted_once() {
    let data = || {
        Loader::new(Memory::labelled((0..8).map(|x| x as f32).collect::<Vec<_>>(), [1], vec![0; 8]).unwrap())
    };
    let notes = Notes::default();
    let builder =
        Trainer::builder(Dense::new(2)).global_batch(4).shards(4).replicas(1).observer(notes.clone());
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    let told = || notes.0.lock().unwrap().iter().filter(|note| note.contains("not in the source's")).count();
    trainer.predict(&data()).unwrap();
    assert_eq!(told(), 0);
    trainer.predict(&data().shuffle(1)).unwrap();
    trainer.predict_all(&data().lanes()).unwrap();
    assert_eq!(told(), 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    trainer.export(&path, unisono::checkpoint::WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::builder().replicas(1).open(&path).unwrap();
    predictor.predict(&data()).unwrap();
    assert!(predictor.report().notes.is_empty());
    predictor.predict(&data().shuffle(1)).unwrap();
    assert!(predictor.report().to_string().contains("note: the loader shuffles"));
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
    let deep = (0..4).fold(Sequential::new(), |deep, _| deep.add(Dense::new(4)).add(Relu)).add(cut());
    let notes = self::notes(deep.add(Dense::new(3)), &[4], Sgd::new(0.1));
    assert!(notes[0].contains("4.weight and 3 more: training"), "{notes:?}");
    let none = self::notes(Sequential::new().add(Flatten), &[4], Sgd::new(0.1));
    assert_eq!(none, ["the model has no parameters: nothing is trained"]);
}

/// A teacher that is only applied frozen is not trained on purpose; an average of what nobody trains is not.
#[test]
fn a_layer_that_the_model_freezes_is_not_noted() {
    let notes = |teach: fn(&mut Context, &Dense, &Var) -> Var| {
        let model = FromFn::new("student", move |cx, x: &Var| {
            cx.apply("student", &Dense::new(3), x) + teach(cx, &Dense::new(3), x)
        });
        self::notes(model, &[4], Sgd::new(0.1))
    };
    assert_eq!(notes(|cx, teacher, x| cx.apply_frozen("teacher", teacher, x)), [""; 0]);
    let average = notes(|cx, teacher, x| cx.apply_average("teacher", teacher, x, 0.9));
    assert_eq!(average, ["no loss depends on teacher.weight, teacher.bias: training does not change them"]);
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

/// A metric of an output with a name gets the same advice as that of the only output.
#[test]
fn metrics_of_named_outputs_are_noted_too() {
    fn notes(
        end: fn(&Var) -> Var,
        loss: impl Loss + 'static,
        metric: impl unisono::Metric + 'static,
    ) -> String {
        let data = Memory::new("x", [4], Values::F32(vec![0.5; 4])).unwrap();
        let data = data.with("sold", [3], Values::F32(vec![1.0; 3])).unwrap();
        let model = Model::new(move |cx, x| {
            Outputs::new().with("sold", &end(&cx.apply("head", &Dense::new(3), &x["x"])))
        });
        let builder = Trainer::builder(model).loss_of("sold", loss, 1.0).metric_of("sold", metric);
        let builder = builder.global_batch(8).replicas(1);
        builder.build(&Loader::new(data).fields().unwrap()).unwrap().notes().join(" ")
    }
    let answers = notes(Var::clone, BinaryCrossEntropyWithLogits, unisono::Accuracy);
    assert!(
        answers.contains("the metric sold accuracy looks only") && answers.contains("use BinaryAccuracy"),
        "{answers:?}"
    );
    let shares = notes(Var::sigmoid, unisono::MeanSquaredError, unisono::BinaryAccuracy);
    assert!(
        shares.contains("the metric sold binary accuracy takes logits")
            && shares.contains("use F1::binary()"),
        "{shares:?}"
    );
}
