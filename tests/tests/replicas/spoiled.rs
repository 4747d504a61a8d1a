//! A step whose new state is not finite is an error. Nothing of that state is saved or given out, and the run
//! goes on from a checkpoint that is finite.

use std::path::Path;

use unisono::checkpoint::{Plan, Tensor, WeightPrecision, list, load};
use unisono::data::{Field, Loader, Memory};
use unisono::{
    Adam, Builder, Context, CrossEntropy, Dense, Epoch, Error, FromFn, Loss, Optimizer, Precision, Relu,
    Saving, Scalar, Sequential, Sgd, Trainer, Type, Update, Var,
};
use unisono_tests::{CLASSES, FEATURES};

/// The step, counted from 0, whose samples all have the last label.
const BAD: u64 = 3;
const BATCH: usize = 8;

/// The cross-entropy, which is 1e25 times as large for samples with the last label.
struct Marked;

impl Loss for Marked {
    fn name(&self) -> &'static str {
        "marked"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        CrossEntropy::default().target(output)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let last = target.tape().constant(CLASSES as f32 - 1.5);
        let is_marked = target.to_f32().greater(&last);
        CrossEntropy::default().per_sample(output, target) * (is_marked * 1e25 + 1.0)
    }

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        CrossEntropy::default().check(output, targets)
    }
}

/// Stochastic gradient descent that keeps the logarithm of a negative number.
struct Logarithms;

impl Optimizer for Logarithms {
    fn name(&self) -> &'static str {
        "logarithms"
    }

    fn scalars(&self, _step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", 0.01)]
    }

    fn observe(&mut self, _history: &[Epoch]) -> Result<(), String> {
        Ok(())
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let logarithm = cx.state("logarithm", weight);
        cx.set(&logarithm, &(&logarithm - gradient.abs() - 1.0).log());
        weight - gradient * cx.scalar("lr")
    }
}

/// Returns a loader of six batches in order. All labels of batch [`BAD`] are the last one, and no others.
fn data() -> Loader {
    let samples = 6 * BATCH;
    let is_bad = |i: usize| (i / BATCH) as u64 == BAD;
    let labels: Vec<i32> =
        (0..samples).map(|i| if is_bad(i) { CLASSES as i32 - 1 } else { (i % 2) as i32 }).collect();
    let features: Vec<f32> = (0..samples * FEATURES).map(|i| ((i * 37) % 19) as f32 / 19.0 - 0.5).collect();
    Loader::new(Memory::labelled(features, [FEATURES], labels).unwrap()).threads(1)
}

fn builder(optimizer: impl Optimizer + 'static, replicas: usize) -> Builder {
    let model = Sequential::new().add(Dense::new(12)).add(Relu).add(Dense::new(CLASSES));
    Trainer::builder(model)
        .loss(Marked)
        .optimizer(optimizer)
        .seed(5)
        .global_batch(BATCH)
        .shards(4)
        .replicas(replicas)
}

/// Returns the step, the tensor and the number of other tensors of an error.
fn what(error: Error) -> (u64, String, usize) {
    match error {
        Error::StateNotFinite { step, tensor, more } => (step, tensor, more),
        other => panic!("{other}"),
    }
}

fn assert_finite(dir: &Path) {
    let (_, contents) = load(dir).unwrap();
    let is_finite = |tensor: &Tensor| {
        tensor.bytes().chunks(4).all(|word| f32::from_le_bytes(word.try_into().unwrap()).is_finite())
    };
    for (name, tensor) in contents.model.iter().chain(&contents.optimizer) {
        assert!(is_finite(tensor), "{name} in {}", dir.display());
    }
}

/// Everything that gives a state out or goes on from it.
fn assert_refuses(trainer: &mut Trainer, data: &Loader, expected: &(u64, String, usize)) {
    let file = tempfile::tempdir().unwrap().path().join("model.safetensors");
    let batch = data.clone().batch(BATCH).epoch(0).unwrap().next().unwrap().unwrap();
    let refused = [
        trainer.state_sha256().unwrap_err(),
        trainer.contents().unwrap_err(),
        trainer.export(&file, WeightPrecision::F32).unwrap_err(),
        trainer.evaluate(data).unwrap_err(),
        trainer.predict(data).unwrap_err(),
        trainer.step(&batch).unwrap_err(),
        trainer.fit(data, None, 1).unwrap_err(),
        trainer.load_model(&file, &Plan::new()).unwrap_err(),
    ];
    refused.into_iter().for_each(|error| assert_eq!(&what(error), expected));
    assert!(!file.exists());
}

#[test]
fn gradients_that_overflow_a_moment_end_the_run_before_it_is_saved() {
    let data = data();
    let steps = |dir: &Path| list(dir).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<u64>>();
    let mut hashes = Vec::new();
    for replicas in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = builder(Adam::new(0.01), replicas).build(&data.fields().unwrap()).unwrap();
        trainer.save_to(Saving::new(dir.path()).every(1).keep_last(2)).unwrap();
        let error = what(trainer.fit(&data, None, 2).unwrap_err());
        assert_eq!((error.0, error.2), (BAD, 3), "both layers' weight and bias: {error:?}");
        assert!(error.1.ends_with("/exp_avg_sq"), "{error:?}");
        assert_eq!(steps(dir.path())[0], BAD);
        list(dir.path()).unwrap().iter().for_each(|(_, path)| assert_finite(path));
        assert_refuses(&mut trainer, &data, &error);
        assert_eq!(what(trainer.save().unwrap_err()), error);
        assert_eq!(what(trainer.save_model().unwrap_err()), error);
        assert_eq!(steps(dir.path())[0], BAD);
        // The checkpoint before the step is what the trainer goes on from.
        assert_eq!(trainer.resume().unwrap().unwrap().step, BAD);
        hashes.push(trainer.state_sha256().unwrap());
        assert_eq!(what(trainer.fit(&data, None, 2).unwrap_err()), error);
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn a_parameter_that_overflows_is_named() {
    let data = data();
    for replicas in [1, 3] {
        let mut trainer = builder(Sgd::new(1e20), replicas).build(&data.fields().unwrap()).unwrap();
        let batches = data.clone().batch(BATCH).epoch(0).unwrap();
        let bad = batches.map(Result::unwrap).nth(BAD as usize).unwrap();
        let error = what(trainer.step(&bad).unwrap_err());
        assert!(error.0 == 0 && error.1.ends_with(".weight") && error.2 > 0, "{error:?}");
        assert_refuses(&mut trainer, &data, &error);
    }
}

/// A layer's own statistic grows out of f32. No output of a training step shows it.
#[test]
fn a_statistic_that_overflows_is_named() {
    let data = data();
    let grows = FromFn::new("grows", |cx: &mut Context, x: &Var| {
        let size = cx.statistic("size", &[3], unisono::Initializer::Ones);
        cx.replace(&size, &(&size * 1e15));
        x.clone()
    });
    let model = Sequential::new().add(grows).add(Dense::new(CLASSES));
    let builder = Trainer::builder(model).optimizer(Sgd::new(0.01)).global_batch(BATCH).shards(4).replicas(3);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    let error = what(trainer.fit(&data, None, 1).unwrap_err());
    assert_eq!(error, (2, "0.size".into(), 0));
    assert_refuses(&mut trainer, &data, &error);
}

#[test]
fn what_an_optimizer_of_ones_own_keeps_is_checked_in_either_precision() {
    let data = data();
    for precision in [Precision::F32, Precision::Mixed] {
        let model = Sequential::new().add(Dense::new(12)).add(Relu).add(Dense::new(CLASSES));
        let builder = Trainer::builder(model).optimizer(Logarithms).precision(precision);
        let builder = builder.global_batch(BATCH).shards(4).replicas(2);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        let error = what(trainer.fit(&data, None, 1).unwrap_err());
        assert!(error.0 == 0 && error.1.ends_with("/logarithm") && error.2 == 3, "{precision:?}: {error:?}");
    }
}

/// A carry that is not finite stops the step before the state changes, whether the host decides or the
/// device of one replica.
#[test]
fn a_carry_that_overflows_stops_the_step() {
    let data = data();
    for replicas in [1, 2] {
        let grows = FromFn::new("grows", |cx: &mut Context, x: &Var| {
            let size = cx.carry("size", &[2]);
            cx.keep(&size, &(&size * 1e20 + 1.0));
            x.clone()
        });
        let model = Sequential::new().add(grows).add(Dense::new(CLASSES));
        let builder = Trainer::builder(model).optimizer(Sgd::new(0.01)).global_batch(BATCH).shards(4);
        let mut trainer = builder.replicas(replicas).build(&data.fields().unwrap()).unwrap();
        let mut batches = data.clone().batch(BATCH).epoch(0).unwrap();
        trainer.step(&batches.next().unwrap().unwrap()).unwrap();
        trainer.step(&batches.next().unwrap().unwrap()).unwrap();
        let before = trainer.state_sha256().unwrap();
        let error = trainer.step(&batches.next().unwrap().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "step 2: the carry 0.size is not finite", "{replicas} replicas");
        assert_eq!(trainer.state_sha256().unwrap(), before, "{replicas} replicas");
    }
}
