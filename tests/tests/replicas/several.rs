//! Models of several fields, outputs and losses, and layers that are applied more than once.

use unisono::data::{Batch, Field, FieldSpec, Loader, Memory, Sample, Values};
use unisono::{
    AdamW, BatchNorm, BinaryAccuracy, BinaryCrossEntropyWithLogits, Builder, Chain, Context, CrossEntropy,
    Dense, Dropout, Embedding, Lamb, Layer, MeanAbsoluteError, MeanSquaredError, Model, Outputs, Predictor,
    R2, Relu, RootMeanSquaredError, Sequential, Sgd, Trainer, functional,
};
use unisono_random::Draws;

const SAMPLES: usize = 44;

/// Houses with three numbers and a city, and two pictures each; their price, and whether they are sold.
fn houses() -> Memory {
    let mut draws = Draws::of(3, "test", "houses", 0, 0);
    let mut floats = |n: usize| (0..n).map(|_| draws.normal()).collect::<Vec<f32>>();
    let (numbers, left, right) = (floats(3 * SAMPLES), floats(4 * SAMPLES), floats(4 * SAMPLES));
    let price: Vec<f32> = numbers.chunks(3).map(|house| house[0] * 2.0 - house[1]).collect();
    let sold: Vec<f32> = price.iter().map(|price| f32::from(u8::from(*price > 0.5))).collect();
    let cities: Vec<i32> = (0..SAMPLES as i32).map(|at| at % 5).collect();
    let data = Memory::new("numbers", [3], Values::F32(numbers)).unwrap();
    let data = data.with("sold", [1], Values::F32(sold)).unwrap();
    let data = data.with("city", [1], Values::I32(cities)).unwrap();
    let data = data.with("price", [1], Values::F32(price)).unwrap();
    let data = data.with("left", [4], Values::F32(left)).unwrap();
    data.with("right", [4], Values::F32(right)).unwrap()
}

fn loader() -> Loader {
    Loader::new(houses()).shuffle(7).threads(1)
}

fn fields() -> Vec<FieldSpec> {
    loader().fields().unwrap()
}

/// A trunk over two inputs, with two heads.
fn two_heads() -> Model {
    Model::new(|cx, x| {
        let city = cx.apply("city", &Embedding::new(5, 2), &x["city"]).flatten();
        let trunk =
            cx.apply("numbers", &Dense::new(6), &x["numbers"]) + cx.apply("of_city", &Dense::new(6), &city);
        let trunk = cx.apply("norm", &BatchNorm::new(), &trunk).relu();
        let trunk = cx.apply("dropout", &Dropout::new(0.2), &trunk);
        let [price, sold] = ["price", "sold"].map(|name| cx.apply(name, &Dense::new(1), &trunk));
        Outputs::new().with("price", &price).with("sold", &sold)
    })
}

fn builder(replicas: usize) -> Builder {
    Trainer::builder(two_heads())
        .loss_of("price", MeanSquaredError, 1.0)
        .loss_of("sold", BinaryCrossEntropyWithLogits, 0.25)
        .metric_of("price", RootMeanSquaredError)
        .metric_of("sold", BinaryAccuracy)
        .optimizer(Sgd::new(0.05))
        .global_batch(16)
        .replicas(replicas)
}

fn trained(replicas: usize) -> Trainer {
    let mut trainer = builder(replicas).build(&fields()).unwrap();
    trainer.fit(&loader(), Some(&loader()), 3).unwrap();
    trainer
}

#[test]
fn two_inputs_and_two_outputs_are_the_same_on_any_number_of_replicas() {
    let mut one = trained(1);
    let predicted = one.predict_all(&loader()).unwrap();
    assert_eq!(predicted.get("sold").unwrap().shape, [SAMPLES, 1]);
    assert_eq!(predicted.iter().map(|p| &*p.name).collect::<Vec<_>>(), ["price", "sold"]);
    for replicas in [2, 3, 7] {
        let mut trainer = trained(replicas);
        assert_eq!(trainer.state_sha256().unwrap(), one.state_sha256().unwrap());
        assert_eq!(trainer.history(), one.history());
        assert_eq!(trainer.predict_all(&loader()).unwrap(), predicted);
    }
}

#[test]
fn the_history_has_the_total_and_the_parts() {
    let trainer = trained(1);
    let names = ["price loss", "sold loss", "price root mean squared error", "sold binary accuracy"];
    for epoch in trainer.history() {
        for measured in [&epoch.train, epoch.validation.as_ref().unwrap()] {
            assert_eq!(measured.metrics.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
            let [price, sold] = ["price loss", "sold loss"].map(|name| measured.metric(name).unwrap());
            assert!((measured.loss - (price + 0.25 * sold)).abs() < 1e-6 * measured.loss, "{measured:?}");
            // The metric is the root of the loss's mean over samples.
            let root = measured.metric(names[2]).unwrap();
            assert!((root * root - price).abs() < 1e-6 * price, "{measured:?}");
        }
    }
    let (first, last) = (&trainer.history()[0], &trainer.history()[2]);
    assert!(last.train.loss < first.train.loss);
}

#[test]
fn a_run_of_several_fields_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = builder(2).build(&fields()).unwrap();
    trainer.checkpoints(dir.path(), 2).unwrap();
    trainer.fit(&loader(), Some(&loader()), 1).unwrap();
    drop(trainer);
    let mut trainer = builder(3).build(&fields()).unwrap();
    trainer.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, 3);
    trainer.fit(&loader(), Some(&loader()), 3).unwrap();
    let mut whole = trained(1);
    assert_eq!(trainer.history(), whole.history());
    assert_eq!(trainer.state_sha256().unwrap(), whole.state_sha256().unwrap());
    drop(trainer);
    // A loss that counts otherwise is another run.
    let other = Trainer::builder(two_heads())
        .loss_of("price", MeanSquaredError, 1.0)
        .loss_of("sold", BinaryCrossEntropyWithLogits, 0.5)
        .metric_of("price", RootMeanSquaredError)
        .metric_of("sold", BinaryAccuracy);
    let mut other = other.optimizer(Sgd::new(0.05)).global_batch(16).replicas(1).build(&fields()).unwrap();
    other.checkpoints(dir.path(), 0).unwrap();
    let error = other.resume().unwrap_err().to_string();
    assert!(error.contains("binary cross-entropy of sold as sold x 0.25"), "{error}");
}

/// A prediction needs neither the targets nor fields that the outputs do not depend on.
#[test]
fn a_prediction_takes_what_the_model_asks_for() {
    let mut trainer = trained(1);
    let all = houses();
    let (numbers, cities) = (all.array("numbers").unwrap().clone(), all.array("city").unwrap().clone());
    let inputs = Memory::new("numbers", [3], numbers).unwrap().with("city", [1], cities).unwrap();
    let predicted = trainer.predict_all(&Loader::new(inputs)).unwrap();
    assert_eq!(predicted, trainer.predict_all(&Loader::new(houses())).unwrap());
}

/// The output `price` needs the numbers alone. What the other output takes need not be there.
#[test]
fn a_prediction_of_some_outputs_takes_the_fields_of_these() {
    let model = || {
        Model::new(|cx, x| {
            let city = cx.apply("city", &Embedding::new(5, 2), &x["city"]).flatten();
            let sold = cx.apply("sold", &Dense::new(1), &city.concat(&[&x["left"]], -1));
            Outputs::new()
                .with("sold", &sold)
                .with("price", &cx.apply("price", &Dense::new(1), &x["numbers"]))
        })
    };
    let start = || {
        let builder = Trainer::builder(model()).loss_of("price", MeanSquaredError, 1.0);
        builder.loss_of("sold", BinaryCrossEntropyWithLogits, 1.0).global_batch(16).replicas(1)
    };
    let numbers = Memory::new("numbers", [3], houses().array("numbers").unwrap().clone()).unwrap();
    let numbers = Loader::new(numbers);
    let run = |cluster: unisono::Cluster| {
        let mut trainer = start().cluster(cluster).build(&fields()).unwrap();
        trainer.fit(&loader(), None, 1).unwrap();
        let all = trainer.predict_all(&Loader::new(houses())).unwrap();
        let price = trainer.predict_outputs(&numbers, &["price"]).unwrap();
        assert_eq!(price.iter().collect::<Vec<_>>(), [all.get("price").unwrap()]);
        (trainer, price)
    };
    let (mut trainer, price) = run(unisono::Cluster::alone());
    let elsewhere = unisono_tests::on_ranks(2, unisono::cluster::Script::default(), |cluster| run(cluster).1);
    assert!(elsewhere.iter().all(|found| *found == price));
    let first = numbers.clone().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    let of_batch = trainer.predict_batch_outputs(&first, &["price"]).unwrap();
    assert_eq!(of_batch.get("price").unwrap().values, price.get("price").unwrap().values[..16]);
    // A batch that no loader made.
    let values = first.f32("numbers").unwrap().to_vec();
    let own = Batch::of_fields(Sample::new().with("numbers", Field::f32([16, 3], values))).unwrap();
    assert_eq!(trainer.predict_batch_outputs(&own, &["price"]).unwrap(), of_batch);
    for (outputs, expected) in [
        (&["prize"][..], "the model has no output \"prize\", only sold, price"),
        (&[], "no output is asked for: the model has sold, price"),
        (&["price", "sold"], "field \"city\""),
    ] {
        let error = trainer.predict_outputs(&numbers, outputs).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("houses.safetensors");
    trainer.export(&path, unisono::checkpoint::WeightPrecision::F32).unwrap();
    let mut predictor = Predictor::builder().replicas(1).open_model(model(), &fields(), &path).unwrap();
    assert_eq!(predictor.predict_outputs(&numbers, &["price"]).unwrap(), price);
    assert_eq!(predictor.predict_batch_outputs(&own, &["price"]).unwrap(), of_batch);
    assert!(predictor.predict(&numbers).unwrap_err().to_string().contains("field \"city\""));
}

#[test]
fn a_batch_of_fields_has_as_many_samples_in_each() {
    let of = |fields: &[(&str, &[usize], usize)]| {
        let add = |sample: Sample, (name, shape, count): &(&str, &[usize], usize)| {
            sample.with(*name, Field::f32(*shape, vec![0.0; *count]))
        };
        Batch::of_fields(fields.iter().fold(Sample::new(), add))
            .map(|batch| (batch.len(), batch.after.sample))
    };
    assert_eq!(of(&[("x", &[3, 2], 6), ("y", &[3], 3)]).unwrap(), (3, 3));
    for (fields, expected) in [
        (&[("x", &[3, 2][..], 6), ("y", &[2], 2)][..], "2 samples, and 3 of the field \"x\""),
        (&[("x", &[3, 2], 5)], "5 values do not fill the shape [3, 2]"),
        (&[("x", &[], 1)], "shape [] has no samples"),
        (&[("x", &[0, 2], 0)], "shape [0, 2] has no samples"),
        (&[], "at least one field"),
    ] {
        let error = of(fields).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn refused(builder: Builder) -> String {
    builder.build(&fields()).err().expect("it is refused").to_string()
}

#[test]
fn what_does_not_fit_is_named() {
    let on = |model: Model| Trainer::builder(model).global_batch(16).replicas(1);
    let one = |name: &'static str, field: &'static str| {
        Model::new(move |cx, x| Outputs::new().with(name, &cx.apply("out", &Dense::new(1), &x[field])))
    };
    let error = refused(on(one("price", "rooms")).loss_of("price", MeanSquaredError, 1.0));
    assert!(error.contains("no field \"rooms\", only city, left, numbers, price, right, sold"), "{error}");
    let error = refused(on(one("price", "numbers")).loss_of("cost", MeanSquaredError, 1.0));
    assert!(error.contains("the model has no output \"cost\", only price"), "{error}");
    let measured = on(one("price", "numbers")).loss_of("price", MeanSquaredError, 1.0);
    let error = refused(measured.metric_of("prize", R2));
    assert!(error.contains("the model has no output \"prize\", only price"), "{error}");
    let error = refused(on(one("height", "numbers")).loss_of("height", MeanSquaredError, 1.0));
    assert!(error.contains("which the output \"height\" is compared with (loss_between and"), "{error}");
    let error = refused(on(one("price", "numbers")).loss_of("sold", MeanSquaredError, 1.0));
    assert!(error.contains("the model has no output \"sold\", only price"), "{error}");
    let error = refused(on(one("price", "numbers")).loss(MeanSquaredError));
    assert!(error.contains("the model has no output \"output\", only price"), "{error}");
    for weight in [f32::NAN, -1.0] {
        let error = refused(on(one("price", "numbers")).loss_of("price", MeanSquaredError, weight));
        assert!(error.contains("negative or not finite"), "{error}");
    }
    let own = CrossEntropy::new().ignore_index(-1);
    let two = Model::new(|cx, x| {
        let city = cx.apply("city", &Dense::new(5), &x["numbers"]).reshape(&[1, 5]);
        Outputs::new().with("city", &city).with("price", &cx.apply("price", &Dense::new(1), &x["numbers"]))
    });
    let weighed = on(two).loss_of("city", own, 1.0).loss_of("price", MeanSquaredError, 1.0);
    assert!(weighed.build(&fields()).is_ok(), "each of several losses has weights of its own");
    let twice = Model::new(|cx, x| {
        let y = cx.apply("out", &Dense::new(1), &x["numbers"]);
        Outputs::new().with("price", &y).with("price", &y)
    });
    let error = refused(on(twice).loss_of("price", MeanSquaredError, 1.0));
    assert!(error.contains("outputs and losses have the name \"price\""), "{error}");
    let error = trained(1).predict(&loader()).unwrap_err().to_string();
    assert!(error.contains("the model has price, sold: predict_all"), "{error}");
}

/// Trains a model of the two pictures to tell the price, and returns its state by tensors.
fn tensors(model: Model) -> Vec<(String, Vec<f32>)> {
    let builder = Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0).optimizer(Sgd::new(0.05));
    let mut trainer = builder.global_batch(16).replicas(2).build(&fields()).unwrap();
    trainer.fit(&loader(), None, 2).unwrap();
    let names: Vec<String> = trainer.tensors().into_iter().map(|(name, _)| name).collect();
    names.into_iter().map(|name| (name.clone(), trainer.tensor(&name).unwrap().unwrap())).collect()
}

fn tower() -> Sequential {
    Sequential::new().add(Dense::new(5)).add(Relu).add(Dense::new(1))
}

/// A tower over two inputs is the tower over a sequence of two, since a dense layer takes each of the
/// sequence.
#[test]
fn a_layer_that_is_applied_twice_has_one_set_of_weights() {
    let siamese = tensors(Model::new(|cx, x| {
        let [left, right] = ["left", "right"].map(|side| cx.apply("tower", &tower(), &x[side]));
        Outputs::new().with("price", &(left - right))
    }));
    assert_eq!(
        siamese.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
        ["tower.0.weight", "tower.0.bias", "tower.2.weight", "tower.2.bias"]
    );
    let stacked = tensors(Model::new(|cx, x| {
        let both = functional::stack(&[x["left"].clone(), x["right"].clone()]).unwrap();
        let y = cx.apply("tower", &tower(), &both);
        let steps = functional::unstack(&y);
        Outputs::new().with("price", &(&steps[0] - &steps[1]))
    }));
    for ((name, a), (_, b)) in siamese.iter().zip(&stacked) {
        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let size = a.iter().map(|a| a.abs()).fold(0.0, f32::max);
        assert!(far <= 1e-5 * size, "{name}: {far} of {size}");
    }
}

/// The second application goes on from the statistics of the first, as in Keras and PyTorch.
#[test]
fn statistics_of_a_layer_that_is_applied_twice_are_replaced_twice() {
    let norm = |cx: &mut Context, x: &unisono::Var| cx.apply("norm", &BatchNorm::new().momentum(0.5), x);
    let model = Model::new(move |cx, x| {
        let [left, right] = ["left", "right"].map(|side| norm(cx, &x[side]));
        Outputs::new().with("price", &cx.apply("out", &Dense::new(1), &(left + right)))
    });
    let builder = Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0).optimizer(Sgd::new(0.0));
    let mut trainer = builder.global_batch(SAMPLES).replicas(2).build(&fields()).unwrap();
    trainer.fit(&loader(), None, 1).unwrap();
    let name =
        trainer.tensors().into_iter().map(|(name, _)| name).find(|name| name.contains("mean")).unwrap();
    let found = trainer.tensor(&name).unwrap().unwrap();
    let data = houses();
    let mean = |field: &str, at: usize| {
        let values = data.array(field).unwrap().as_f32().unwrap();
        values.iter().skip(at).step_by(4).map(|x| f64::from(*x)).sum::<f64>() / SAMPLES as f64
    };
    for (at, found) in found.iter().enumerate() {
        let expected = 0.5 * (0.5 * mean("left", at)) + 0.5 * mean("right", at);
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

#[test]
fn dropout_that_is_applied_twice_draws_twice() {
    let model = Model::new(|cx, x| {
        let [a, b] = [0, 1].map(|_| cx.apply("dropout", &Dropout::new(0.5), &x["left"]));
        let same = cx.apply("out", &Dense::new(1), &(a - b));
        Outputs::new().with("price", &same)
    });
    let before = |tensors: &[(String, Vec<f32>)]| tensors[0].1.clone();
    // With the same mask the difference would be 0, and so would the weight's gradient.
    let trained = before(&tensors(model));
    let builder = Trainer::builder(Model::new(|cx, x| {
        Outputs::new().with("price", &cx.apply("out", &Dense::new(1), &x["left"]))
    }));
    let builder = builder.loss_of("price", MeanSquaredError, 1.0).global_batch(16).replicas(1);
    let start = builder.build(&fields()).unwrap().tensor("out.weight").unwrap().unwrap();
    assert_ne!(trained, start);
}

/// Gradients go through a layer that is applied frozen, and not to its parameters or statistics.
#[test]
fn a_layer_that_is_applied_frozen_is_not_trained() {
    // A decay would change what has no gradient.
    for optimizer in [Chain::from(Sgd::new(0.05)), AdamW::new(0.05).into(), Lamb::new(0.05).into()] {
        let critic = || Sequential::new().add(BatchNorm::new()).add(Dense::new(1));
        let model = Model::new(move |cx, x| {
            let made = cx.apply("generator", &Dense::new(4), &x["left"]);
            cx.apply("unused", &Dense::new(2), &made);
            Outputs::new().with("price", &cx.apply_frozen("critic", &critic(), &made))
        });
        let builder = Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0).optimizer(optimizer);
        let mut trainer = builder.global_batch(16).replicas(1).build(&fields()).unwrap();
        let names: Vec<String> = trainer.tensors().into_iter().map(|(name, _)| name).collect();
        let values = |trainer: &mut Trainer| {
            names.iter().map(|name| trainer.tensor(name).unwrap().unwrap()).collect::<Vec<_>>()
        };
        let before = values(&mut trainer);
        trainer.fit(&loader(), None, 1).unwrap();
        for (name, (before, after)) in names.iter().zip(before.iter().zip(&values(&mut trainer))) {
            assert_eq!(before == after, !name.starts_with("generator."), "{name}");
        }
    }
}

/// Losses of one output are told apart by the fields that they compare with, or by their names.
#[test]
fn an_output_can_have_several_losses() {
    let model =
        || Model::new(|cx, x| Outputs::new().with("price", &cx.apply("out", &Dense::new(1), &x["left"])));
    let builder = Trainer::builder(model())
        .loss_of("price", MeanSquaredError, 1.0)
        .loss_of("price", MeanAbsoluteError, 0.5)
        .loss_of("price", MeanAbsoluteError, 0.25);
    let mut trainer = builder.global_batch(16).replicas(1).build(&fields()).unwrap();
    trainer.fit(&loader(), None, 1).unwrap();
    let train = &trainer.history()[0].train;
    let names: Vec<&str> = train.metrics.iter().map(|(name, _)| &**name).collect();
    let of = |loss: &str| format!("price as price loss: {loss}");
    let expected =
        [of("mean squared error"), of("mean absolute error") + " 2", of("mean absolute error") + " 3"];
    assert_eq!(names, expected);
}

#[test]
fn a_field_with_the_name_of_an_optimizers_number_is_an_error() {
    let model =
        Model::new(|cx, x| Outputs::new().with("price", &cx.apply("out", &Dense::new(1), &x["step"])));
    let builder = Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0).optimizer(AdamW::new(0.1));
    let mut fields = fields();
    let mut step = fields.iter().find(|field| &*field.name == "left").unwrap().clone();
    step.name = "step".into();
    fields.push(step);
    let error = builder.replicas(1).build(&fields).err().unwrap().to_string();
    assert!(error.contains("the field \"step\" has the name of a number that it needs"), "{error}");
}

#[test]
fn a_layer_applied_again_to_another_shape_is_an_error() {
    let model = Model::new(|cx, x| {
        let [a, b] = ["left", "numbers"].map(|field| cx.apply("tower", &tower(), &x[field]));
        Outputs::new().with("price", &(a + b))
    });
    let error = refused(Trainer::builder(model).loss_of("price", MeanSquaredError, 1.0).replicas(1));
    assert!(error.contains("tower.0.weight is [5, 3] here, and [5, 4] where"), "{error}");
}

/// A layer of the library and one of the user's are models alike.
#[test]
fn layers_are_models() {
    let boxed: Box<dyn Layer> = Box::new(tower());
    let _ = [Trainer::builder(boxed), Trainer::builder(tower()), Trainer::builder(Model::from(tower()))];
}
