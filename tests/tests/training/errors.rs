//! Bad input is an error that names its cause before work is lost.

mod mistakes;

use unisono::data::{Batch, Field, Loader, Memory, Position, Values};
use unisono::{
    AdamW, Context, Dense, Description, Dropout, Embedding, FromFn, Initializer, Layer, Metric, Predictor,
    Schedule, Sequential, Sgd, Trainer, Type, Var,
};
use unisono_tests::{FEATURES, blobs, loader, perceptron};

/// Returns the message of the error of a trainer that must not be built.
fn refused(builder: unisono::Builder, data: &Loader) -> String {
    match builder.build(&data.fields().unwrap()) {
        Ok(_) => panic!("this trainer must not be built"),
        Err(error) => error.to_string(),
    }
}

fn has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn a_wrong_sample_shape_names_the_layer_and_both_shapes() {
    let data = loader(10, 1).unwrap();
    let model = Sequential::new().add(Dense::new(8)).add(Dense::new(3).input(64));
    has(&refused(Trainer::builder(model), &data), &["1.dense", "[B, 64]", "[B, 8]"]);
}

#[test]
fn a_layer_that_mixes_samples_is_named() {
    let data = loader(10, 1).unwrap();
    let over_batch = FromFn::new("normalise", |_, x| x - &x.sum_keep(&[0]));
    let model = Sequential::new().add(Dense::new(4)).add(over_batch);
    has(
        &refused(Trainer::builder(model), &data),
        &["1.normalise", "axis 0 of [B, 4] is the batch", "sum_shards"],
    );
    let reshape = Sequential::new().add(FromFn::new("fold", |_, x| x.reshape(&[12])));
    has(
        &refused(Trainer::builder(reshape), &data),
        &["0.fold", "[B, 6]", "[B, 12]", "cannot cross the batch axis"],
    );
}

#[test]
fn targets_that_do_not_fit_are_named() {
    let data = loader(10, 1).unwrap();
    let model = Sequential::new().add(Dense::new(3));
    let message = refused(Trainer::builder(model).loss(unisono::MeanSquaredError), &data);
    has(&message, &["mean squared error", "[B, 3]", "[B] i32"]);
    let one_hot = |values: Values, shape: &[usize]| {
        let x = Memory::new("x", [2], Values::F32(vec![0.5; 8])).unwrap();
        let data = Loader::new(x.with("y", shape, values).unwrap());
        refused(Trainer::builder(Sequential::new().add(Dense::new(3))), &data)
    };
    let message = one_hot(Values::F32(vec![0.0; 12]), &[3]);
    has(&message, &["needs targets [B] i32; got [B, 3]: CrossEntropy::probabilities takes such targets"]);
    has(&one_hot(Values::F32(vec![0.0; 4]), &[]), &["got [B]: unisono::data::cast"]);
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let data = loader(10, 1).unwrap();
    has(&refused(perceptron(4).replicas(0), &data), &["replicas"]);
    has(&refused(perceptron(4).shards(0), &data), &["shards", "0 is not in"]);
    has(&refused(perceptron(4).global_batch(0), &data), &["global batch"]);
    let listed = unisono::gpu::adapters(&[])[0].name.clone();
    has(&refused(perceptron(4).adapter("no such gpu"), &data), &["no such gpu", &listed]);
}

#[test]
fn a_label_out_of_range_names_sample_and_value() {
    let mut labels = vec![0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
    labels[7] = 9;
    let data = Loader::new(Memory::labelled(vec![0.5; 10 * FEATURES], [FEATURES], labels).unwrap());
    let mut trainer = perceptron(4).global_batch(4).build(&data.fields().unwrap()).unwrap();
    let before = trainer.tensor("0.weight").unwrap().unwrap();
    let message = trainer.fit(&data, None, 1).unwrap_err().to_string();
    has(&message, &["position 7", "sample 7 ", "label 9 is not in 0..3"]);
    assert_eq!(trainer.steps(), 1, "the batch before it was trained on");
    assert_ne!(trainer.tensor("0.weight").unwrap().unwrap(), before);
}

#[test]
fn the_position_of_a_sample_behind_those_skipped_is_its_own() {
    let mut labels = vec![0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
    labels[7] = 9;
    // Features are the sample's number, and one sample is bad.
    let features: Vec<f32> = (0..10 * FEATURES).map(|at| (at / FEATURES) as f32).collect();
    let source = Memory::labelled(features, [FEATURES], labels).unwrap();
    for bad in [5.0, 6.0, 8.0] {
        let data = Loader::new(source.clone()).skip_bad(1).try_map("picky", move |sample, _| {
            let x = sample.field("x").and_then(|x| x.values.as_f32()).ok_or("no x")?;
            if x[0] == bad { Err("bad".into()) } else { Ok(()) }
        });
        let mut trainer = perceptron(4).global_batch(5).build(&data.fields().unwrap()).unwrap();
        let message = trainer.fit(&data, None, 1).unwrap_err().to_string();
        has(&message, &["position 7", "sample 7 ", "label 9 is not in 0..3"]);
    }
}

#[test]
fn nan_in_the_data_names_sample_and_field() {
    let mut features = vec![0.5; 10 * FEATURES];
    features[3 * FEATURES + 2] = f32::NAN;
    let data = Memory::labelled(features, [FEATURES], vec![0; 10]).unwrap();
    let data = Loader::new(data);
    let mut trainer = perceptron(4).global_batch(4).build(&data.fields().unwrap()).unwrap();
    let message = trainer.fit(&data, None, 1).unwrap_err().to_string();
    has(&message, &["sample 3", "\"x\"", "NaN"]);
}

#[test]
fn integers_for_a_layer_of_numbers_name_the_layer() {
    let x = Memory::new("x", [4], Values::I32(vec![1; 8])).unwrap();
    let data = Loader::new(x.with("y", [], Values::I32(vec![0, 1])).unwrap());
    let message = refused(Trainer::builder(Sequential::new().add(Dense::new(3))), &data);
    has(&message, &["0.dense: ", "takes f32, and got [B, 4] i32: Var::to_f32"]);
}

/// A batch is a plain struct, so a program may put together one that contradicts itself.
#[test]
fn a_batch_that_contradicts_itself_names_the_field() {
    let data = loader(8, 1).unwrap();
    let mut trainer = perceptron(4).global_batch(8).build(&data.fields().unwrap()).unwrap();
    let whole = data.clone().batch(8).epoch(0).unwrap().next().unwrap().unwrap();
    type Breaks = fn(&mut Field);
    let all: [(Breaks, &[&str]); 4] = [
        (|x| x.shape.clear(), &["\"x\"", "shape [] in a batch of 8 samples"]),
        (|x| x.shape[0] = 7, &["\"x\"", "in a batch of 8 samples"]),
        (|x| x.values = Values::F32(vec![0.5; 3]), &["\"x\"", "3 values for 8 samples"]),
        (|x| x.values = Values::F32(vec![0.5; 8 * FEATURES + 8]), &["\"x\"", "values for 8 samples"]),
    ];
    for (breaks, parts) in all {
        let mut batch = whole.clone();
        breaks(batch.stacked.field_mut("x").unwrap());
        has(&trainer.step(&batch).unwrap_err().to_string(), parts);
        has(&trainer.predict_batch(&batch).unwrap_err().to_string(), parts);
    }
    trainer.step(&whole).unwrap();
    assert_eq!(trainer.steps(), 1);
}

#[test]
fn a_loss_that_turns_nan_names_step_and_first_tensor() {
    let data = loader(40, 1).unwrap();
    for replicas in [1, 2] {
        let log = FromFn::new("log", |_, x| (x - 1e4).log());
        let model = Sequential::new().add(Dense::new(8)).add(log).add(Dense::new(3));
        let mut trainer = Trainer::builder(model).replicas(replicas).build(&data.fields().unwrap()).unwrap();
        let before = trainer.state_sha256().unwrap();
        let message = trainer.fit(&data, None, 1).unwrap_err().to_string();
        has(&message, &["step 0", "the loss of sample", "1.log: log [B, 8]"]);
        assert_eq!(trainer.state_sha256().unwrap(), before, "the step did not happen");
    }
}

#[test]
fn a_gradient_that_is_not_finite_names_the_parameter() {
    let data = loader(16, 1).unwrap();
    for replicas in [1, 2] {
        // At 0 the loss is 0, and its slope is larger than f32 can hold.
        let steep = FromFn::new("steep", |_, x| (x * 1e30).tanh() * 1e30);
        let zero = Dense::new(8).initializer(unisono::Initializer::Zeros);
        let model = Sequential::new().add(zero).add(steep).add(Dense::new(3));
        let mut trainer = Trainer::builder(model).replicas(replicas).build(&data.fields().unwrap()).unwrap();
        let before = trainer.state_sha256().unwrap();
        let message = trainer.fit(&data, None, 1).unwrap_err().to_string();
        has(&message, &["step 0", "the gradient of 0."]);
        assert_eq!(trainer.state_sha256().unwrap(), before, "the step did not happen");
    }
}

#[test]
fn weights_of_zero_change_nothing_and_say_so() {
    let memory = blobs(12, 1).unwrap().with("w", [], unisono::data::Values::F32(vec![0.0; 12])).unwrap();
    let data = Loader::new(memory).batch(12);
    let mut trainer = perceptron(4).global_batch(12).build(&data.fields().unwrap()).unwrap();
    let before = trainer.tensor("0.weight").unwrap().unwrap();
    let batch = data.epoch(0).unwrap().next().unwrap().unwrap();
    assert!(!trainer.step(&batch).unwrap().committed);
    assert_eq!(trainer.tensor("0.weight").unwrap().unwrap(), before);
    assert_eq!(trainer.position(), Position { epoch: 1, sample: 0 });
}

/// A metric with a name of the test's choice.
struct Named(&'static str);

impl Metric for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn accepts(&self, _: &Type, _: &Type) -> Result<(), String> {
        Ok(())
    }
    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        output.sum(&[-1])
    }
}

#[test]
fn two_values_of_one_name_are_refused() {
    let data = loader(10, 1).unwrap();
    let with = |names: &[&'static str]| {
        let builder = Trainer::builder(Dense::new(3));
        refused(names.iter().fold(builder, |builder, name| builder.metric(Named(name))), &data)
    };
    has(&with(&["top_k", "other", "top_k"]), &["metrics: top_k", "two metrics have this name"]);
    for own in ["loss", "loss weight", "weight sum", "penalty", "gradient of the penalty"] {
        has(&with(&[own]), &[own, "a metric cannot have this name"]);
    }
}

/// A penalty stops the step before anything changes if it is infinite or its gradient is not a number,
/// whether the host decides or the device of one replica, which may have the next step in flight.
#[test]
fn a_penalty_or_its_gradient_that_is_not_finite_stops_the_step() {
    type Penalty = fn(&Var) -> Var;
    // The norm of a weight of zeros has no gradient: it is 0 / 0.
    let norm: Penalty = |scale| scale.square().sum_all().sqrt() * 1e-3;
    // It is infinite, and its gradient is 2.
    let huge: Penalty = |scale| (scale.sum_all() + f32::MAX) * 2.0;
    let data = loader(64, 1).unwrap().batch(16);
    let build = |start: f32, penalty: Penalty, (replicas, in_flight)| {
        let penalized = FromFn::new("penalized", move |cx, x| {
            let scale = cx.parameter("scale", &[FEATURES], Initializer::Constant(start));
            cx.penalty(&penalty(&scale));
            x * &scale
        });
        let builder = Trainer::builder(Sequential::new().add(penalized).add(Dense::new(3)));
        let builder = builder.optimizer(AdamW::new(0.01)).global_batch(16).replicas(replicas);
        builder.steps_in_flight(in_flight).build(&data.fields().unwrap()).unwrap()
    };
    for made in [(1, 1), (1, 2), (2, 1)] {
        build(1.0, norm, made).fit(&data, None, 1).unwrap();
        for (start, penalty, what) in [
            (0.0, norm, "the gradient of the penalty is not finite"),
            (1.0, huge, "the penalty is not finite"),
        ] {
            let mut trainer = build(start, penalty, made);
            let before = trainer.state_sha256().unwrap();
            let error = trainer.fit(&data, None, 1).unwrap_err().to_string();
            has(&error, &["step 0", what]);
            let now = trainer.state_sha256().unwrap();
            assert_eq!((trainer.steps(), now), (0, before), "{what}: {made:?}");
        }
    }
}

/// Returns samples with ids of a user, for which there is no table, of two items and of a shop.
fn orders(rows: &[[i32; 4]]) -> Loader {
    let x = unisono::data::Values::I32(rows.concat());
    let source =
        Memory::new("x", [4], x).unwrap().with("y", [], unisono::data::Values::I32(vec![0; rows.len()]));
    Loader::new(source.unwrap())
}

#[test]
fn ids_in_slices_of_the_input_are_checked_against_their_own_table() {
    // The fields are [user, item, item, shop]. There are 5 items and 3 shops.
    let model = FromFn::new("recommend", |cx: &mut Context, x: &Var| {
        let pair = x.slice(-1, 1..3).reshape(&[2, 1]).transpose(1, 2);
        let items = cx.apply("item", &Embedding::new(5, 2), &pair).sum(&[1, 2]);
        let shop = cx.apply("shop", &Embedding::new(3, 2), &x.slice(-1, 3..4)).sum(&[1]);
        cx.apply("logits", &Dense::new(2), &(items + shop))
    });
    let good = orders(&[[-1, 4, 0, 2], [9999, 0, 4, 0]]);
    let mut trainer =
        Trainer::builder(model).global_batch(2).replicas(1).build(&good.fields().unwrap()).unwrap();
    trainer.fit(&good, None, 1).unwrap();
    let before = trainer.state_sha256().unwrap();
    for (bad, problem) in [
        ([0, 5, 0, 0], "id 5 at x[1] is not in 0..5"),
        ([0, 0, -1, 0], "id -1 at x[2] is not in 0..5"),
        ([0, 0, 0, 3], "id 3 at x[3] is not in 0..3"),
    ] {
        let data = orders(&[[0; 4], bad]);
        for error in [
            trainer.step(&data.epoch(0).unwrap().next().unwrap().unwrap()).err().unwrap(),
            trainer.evaluate(&data).err().unwrap(),
            trainer.predict(&data).err().unwrap(),
        ] {
            has(&error.to_string(), &["sample 1", problem]);
        }
    }
    assert_eq!(trainer.state_sha256().unwrap(), before);
}

#[test]
fn layers_that_cannot_work_are_named_from_code_and_from_a_description() {
    let data = loader(10, 1).unwrap();
    let models: [(Sequential, &[&str]); 4] = [
        (Sequential::new().add(Dense::new(0)), &["0.dense", "units is 0"]),
        (Sequential::new().add(Dense::new(1 << 62)), &["0.dense", "has more than 2^48 elements"]),
        (Sequential::new().add(Dense::new(1 << 40)), &["0.weight", "needs"]),
        (Sequential::new().add(Dense::new(3)).add(Dropout::new(2.0)), &["1.dropout", "rate is 2"]),
    ];
    for (model, parts) in models {
        let json = serde_json::to_string(&model.description().unwrap()).unwrap();
        let again = serde_json::from_str::<Description>(&json).unwrap().layer();
        has(&refused(Trainer::builder(model), &data), parts);
        has(&refused(Trainer::builder(again), &data), parts);
    }
}

#[test]
fn optimizers_that_cannot_work_are_named() {
    let data = loader(10, 1).unwrap();
    let endless = Schedule::function(|step| 0.1 / (step as f64 - step as f64));
    has(
        &refused(perceptron(4).optimizer(Sgd::new(f64::NAN)), &data),
        &["sgd: the learning rate of step 0 is NaN"],
    );
    has(
        &refused(perceptron(4).optimizer(AdamW::new(endless)), &data),
        &["adamw: the learning rate of step 0 is inf"],
    );
    has(&refused(perceptron(4).optimizer(AdamW::new(0.1).betas(0.9, -1.0)), &data), &["adamw: beta2 is -1"]);
}

/// Trainer and predictor say which call takes more samples than they compute at once.
#[test]
fn a_batch_too_large_to_predict_says_what_to_do() {
    let loader = Loader::new(Memory::labelled([0.5; 36], [4], [0, 1, 2, 0, 1, 2, 0, 1, 2]).unwrap());
    let model = || Sequential::new().add(Dense::new(3));
    let builder = Trainer::builder(model()).global_batch(8).replicas(1).adapter("cpu");
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    let batch = |rows: usize| Batch::of([("x", Field::f32([rows, 4], vec![0.5; 4 * rows]))]).unwrap();
    let message = trainer.predict_batch(&batch(9)).unwrap_err().to_string();
    has(&message, &["batch: 9 samples, and the global batch has 8", "`predict_all`", "a loader"]);
    assert_eq!(trainer.predict_batch(&batch(8)).unwrap().len(), 24);
    assert_eq!(trainer.predict(&loader).unwrap().len(), 27);

    let fields = [Field::f32([4], [0.0; 4]).spec("x")];
    let builder = Predictor::builder().batch(8).replicas(1).adapter("cpu");
    let mut predictor = builder.open_tensors(model(), &fields, &trainer.weights().unwrap()).unwrap();
    let message = predictor.predict_batch(&batch(9)).unwrap_err().to_string();
    has(&message, &["batch: 9 samples in batches of up to 8", "a loader", "PredictorBuilder::batch(9)"]);
    assert_eq!(predictor.predict(&loader).unwrap().get("output").unwrap().values.len(), 27);
}
