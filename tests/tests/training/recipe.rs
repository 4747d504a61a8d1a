//! Weights of classes, frozen statistics, gradient accumulation, dry runs, limits and evaluations in between.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    BatchNorm, BinaryCrossEntropyWithLogits, Builder, Contrastive, CrossEntropy, Dense, EvaluateEvery, Hinge,
    Influence, Loss, MeanSquaredError, Model, Optimizer, Outputs, Phase, Relu, Sequential, Sgd, Trainer,
    balanced_class_weights,
};
use unisono_tests::{CLASSES, FEATURES, blobs, loader, perceptron};

use crate::{Notes, others, sha256};

fn data() -> Loader {
    loader(50, 5).unwrap()
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().fields().unwrap()).unwrap()
}

fn fitted(builder: Builder, loader: &Loader) -> Trainer {
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    trainer.fit(loader, Some(loader), 2).unwrap();
    trainer
}

fn plain(replicas: usize) -> Builder {
    perceptron(8).optimizer(Sgd::new(0.2)).global_batch(16).replicas(replicas)
}

/// The blobs with a weight for each sample: that of its class.
fn weighted(weights: &[f32]) -> Loader {
    let all = blobs(50, 5).unwrap();
    let (x, y) = (all.array("x").unwrap().clone(), all.array("y").unwrap().clone());
    let w: Vec<f32> = y.as_i32().unwrap().iter().map(|class| weights[*class as usize]).collect();
    let all = Memory::new("x", [FEATURES], x).unwrap().with("y", [], y).unwrap();
    Loader::new(all.with("w", [], Values::F32(w)).unwrap()).shuffle(5).threads(1)
}

/// The reference is the field `w`, whose meaning other tests hold to PyTorch.
#[test]
fn class_weights_are_weights_of_samples_in_training_alone() {
    let weights = [0.5, 2.0, 1.0];
    let mut by_class = fitted(plain(1).class_weights(weights), &data());
    let mut by_sample = fitted(plain(1), &weighted(&weights));
    for name in ["0.weight", "3.bias"] {
        let [a, b] = [&mut by_class, &mut by_sample].map(|t| t.tensor(name).unwrap().unwrap());
        assert_eq!(a, b);
    }
    let [own, given] = [&by_class, &by_sample].map(|t| t.history()[1].train.loss);
    assert_eq!(own, given);
    // Evaluations count all samples alike.
    let evaluation = by_class.evaluate(&data()).unwrap();
    assert_eq!(evaluation.loss, by_class.history()[1].validation.as_ref().unwrap().loss);
    assert_ne!(evaluation.loss, by_sample.evaluate(&weighted(&weights)).unwrap().loss);
    let same = sha256(&mut by_class);
    for &replicas in others() {
        assert_eq!(sha256(&mut fitted(plain(replicas).class_weights(weights), &data())), same);
    }
    assert_ne!(sha256(&mut fitted(plain(1), &data())), same);
}

#[test]
fn class_weights_of_a_binary_loss_and_those_that_do_not_fit() {
    let sold: Vec<f32> = (0..40).map(|at| f32::from(at % 4 == 0)).collect();
    let x: Vec<f32> = (0..40).map(|at| (at % 7) as f32).collect();
    let all = |w: Option<[f32; 2]>| {
        let data = Memory::new("x", [1], Values::F32(x.clone())).unwrap();
        let data = data.with("y", [1], Values::F32(sold.clone())).unwrap();
        let weights = w.map(|w| sold.iter().map(|y| w[*y as usize]).collect());
        Loader::new(weights.map_or(data.clone(), |w| data.with("w", [], Values::F32(w)).unwrap())).shuffle(1)
    };
    let model = || Trainer::builder(Dense::new(1)).loss(BinaryCrossEntropyWithLogits).replicas(1);
    let weights = balanced_class_weights(&[30, 10]);
    assert_eq!(weights, [40.0 / 60.0, 2.0]);
    let train = |builder: Builder, loader: Loader| {
        let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
        trainer.fit(&loader, None, 2).unwrap();
        trainer.tensor("weight").unwrap().unwrap()
    };
    let by_class = train(model().class_weights(weights.clone()), all(None));
    assert_eq!(by_class, train(model(), all(Some([weights[0], weights[1]]))));
    let refused = |weights: &[f32]| {
        let built = model().class_weights(weights).build(&all(None).fields().unwrap());
        built.err().expect("it is refused").to_string()
    };
    assert!(refused(&[1.0; 3]).contains("3 weights for 2 classes"), "{}", refused(&[1.0; 3]));
    for wrong in [[1.0, -1.0], [f32::NAN, 1.0], [0.0, 0.0]] {
        assert!(refused(&wrong).contains("class weights"));
    }
}

/// A hinge's labels are -1 and 1, whatever their type.
#[test]
fn class_weights_of_a_hinge_count_both_classes() {
    let x: Vec<f32> = (0..40).map(|at| (at % 7) as f32).collect();
    let train = |labels: Values, weights: Option<[f32; 2]>| {
        let data = Memory::new("x", [1], Values::F32(x.clone())).unwrap().with("y", [1], labels).unwrap();
        let loader = Loader::new(data).shuffle(1);
        let builder = Trainer::builder(Dense::new(1)).loss(Hinge::new()).replicas(1);
        let builder = weights.into_iter().fold(builder, |builder, weights| builder.class_weights(weights));
        let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
        trainer.fit(&loader, None, 2).unwrap();
        trainer.tensor("weight").unwrap().unwrap()
    };
    let labels = || (0..40).map(|at| if at % 4 == 0 { 1 } else { -1 });
    let (whole, floats) =
        (|| Values::I32(labels().collect()), Values::F32(labels().map(|y| y as f32).collect()));
    assert_eq!(train(whole(), Some([1.0, 1.0])), train(whole(), None));
    let weighed = train(whole(), Some([0.25, 2.0]));
    assert!(weighed == train(floats, Some([0.25, 2.0])) && weighed != train(whole(), None));
}

/// The labels of pairs are 0 and 1, however long the vectors are.
#[test]
fn class_weights_of_pairs_are_two() {
    let y: Vec<f32> = (0..40).map(|at| f32::from(at % 4 == 0)).collect();
    let x: Vec<f32> = (0..160).map(|at| (at % 7) as f32).collect();
    let train = |w: Option<[f32; 2]>, weights: Option<[f32; 2]>| {
        let data = Memory::new("x", [2, 2], Values::F32(x.clone())).unwrap();
        let data = data.with("y", [], Values::F32(y.clone())).unwrap();
        let own = w.map(|w| Values::F32(y.iter().map(|y| w[*y as usize]).collect()));
        let loader = Loader::new(own.map_or(data.clone(), |own| data.with("w", [], own).unwrap())).shuffle(1);
        let builder = Trainer::builder(Dense::new(5)).loss(Contrastive::default()).replicas(1);
        let builder = weights.into_iter().fold(builder, |builder, weights| builder.class_weights(weights));
        let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
        trainer.fit(&loader, None, 2).unwrap();
        trainer.tensor("weight").unwrap().unwrap()
    };
    assert_eq!(train(None, Some([0.5, 2.0])), train(Some([0.5, 2.0]), None));
    assert_ne!(train(None, Some([0.5, 2.0])), train(None, None));
}

/// The weights of classes are those of all steps, so a phase cannot have a loss of something else.
#[test]
fn class_weights_and_a_phase_with_a_loss_of_something_else_are_refused() {
    let data = || {
        let of_kinds = data().map("price", |sample, _| {
            sample.set("price", unisono::data::Field::f32([1], [2.0]));
        });
        of_kinds.fields().unwrap()
    };
    let model = || {
        Model::new(|cx, x| {
            let kind = cx.apply("kind", &Dense::new(CLASSES), &x["x"]);
            Outputs::new().with("kind", &kind).with("price", &cx.apply("price", &Dense::new(1), &x["x"]))
        })
    };
    let builder = |output: &'static str, target: &'static str, loss: Box<dyn Loss>| {
        Trainer::builder(model())
            .loss_between("kind", "y", CrossEntropy::new(), 1.0)
            .class_weights([1.0, 0.0, 5.0])
            .phase(Phase::new("kinds"))
            .phase(Phase::new("second").loss_between(output, target, loss, 1.0))
            .replicas(1)
    };
    let refused = builder("price", "price", Box::new(MeanSquaredError)).build(&data());
    let error = refused.err().expect("it is refused").to_string();
    assert!(error.contains("class weights") && error.contains("the phase \"second\" has"), "{error}");
    // Another loss of the same labels has the same classes.
    let smoothed = CrossEntropy::new().label_smoothing(0.1);
    assert!(builder("kind", "y", Box::new(smoothed)).build(&data()).is_ok());
}

fn normed() -> Sequential {
    Sequential::new().add(Dense::new(8)).add(BatchNorm::new()).add(Relu).add(Dense::new(CLASSES))
}

#[test]
fn frozen_statistics_stay_and_are_used() {
    let is_base = |name: &str| name.starts_with("0.") || name.starts_with("1.");
    let builder = |replicas| {
        let sgd = Sgd::new(0.2).freeze(is_base);
        Trainer::builder(normed())
            .optimizer(sgd)
            .freeze_statistics(is_base)
            .global_batch(16)
            .replicas(replicas)
    };
    let mut one = fitted(builder(1), &data());
    assert_eq!(one.tensor("1.running_mean").unwrap().unwrap(), vec![0.0; 8]);
    assert_eq!(one.tensor("1.running_var").unwrap().unwrap(), vec![1.0; 8]);
    // Training sees what evaluation sees, so a step of rate 0 has the evaluation's loss.
    let mut still = Trainer::builder(normed()).optimizer(Sgd::new(0.0)).freeze_statistics(|_| true);
    still = still.global_batch(50).replicas(1);
    let mut still = build(still);
    let before = still.evaluate(&data()).unwrap().loss;
    still.fit(&data(), None, 1).unwrap();
    assert!((still.history()[0].train.loss - before).abs() < 1e-6 * before);
    assert_eq!(sha256(&mut fitted(builder(3), &data())), sha256(&mut one));
    // Without freezing them they move, also under frozen parameters.
    let mut moved = fitted(
        Trainer::builder(normed()).optimizer(Sgd::new(0.2).freeze(is_base)).global_batch(16).replicas(1),
        &data(),
    );
    assert_ne!(moved.tensor("1.running_mean").unwrap().unwrap(), vec![0.0; 8]);
    let none = build(Trainer::builder(normed()).freeze_statistics(|name| name == "bn").replicas(1));
    assert!(none.notes().iter().any(|note| note.contains("accepts none")), "{:?}", none.notes());
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let mut whole = fitted(plain(1), &data());
    for (replicas, parts) in [(1, 4), (1, 8), (2, 2)] {
        let builder = plain(replicas).gradient_accumulation(parts);
        let mut trainer = fitted(builder, &data());
        assert_eq!(sha256(&mut trainer), sha256(&mut whole));
        let memory = trainer.summary().memory.unwrap();
        assert_eq!(memory.shards.div_ceil(memory.shards_at_once), parts);
        assert!(memory.scratch < whole.summary().memory.unwrap().scratch);
    }
    let refused = plain(1).gradient_accumulation(9).build(&data().fields().unwrap());
    assert!(refused.err().unwrap().to_string().contains("9 parts of a step of 8 shards"));
    let normed = build(Trainer::builder(normed()).gradient_accumulation(2).replicas(1));
    assert!(normed.notes().iter().any(|note| note.contains("not computed in 2 parts")));
}

#[test]
fn a_dry_run_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let mut tried = build(plain(2).observer(notes.clone()));
    tried.checkpoints(dir.path(), 1).unwrap();
    let before = sha256(&mut tried);
    let (train, validation) = tried.dry_run(&data(), Some(&data())).unwrap();
    assert!(train.loss > 0.0 && train.samples == 16 && validation.unwrap().samples == 32);
    assert_eq!((sha256(&mut tried), tried.steps(), tried.history().len()), (before, 0, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("checkpoints")).map_or(0, Iterator::count), 0);
    tried.fit(&data(), Some(&data()), 2).unwrap();
    let mut other = fitted(plain(1), &data());
    assert_eq!(sha256(&mut tried), sha256(&mut other));
    assert_eq!(tried.history(), other.history());
    // What cannot work is found, and what was there before stays.
    let before = sha256(&mut tried);
    let nan = Memory::labelled(vec![f32::NAN; FEATURES], [FEATURES], vec![0]).unwrap();
    let error = tried.dry_run(&data(), Some(&Loader::new(nan))).unwrap_err().to_string();
    assert!(error.contains("NaN"), "{error}");
    assert_eq!((sha256(&mut tried), tried.steps()), (before, 8));
}

#[test]
fn limits_count_batches_of_the_trainer_and_are_a_part_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |replicas: usize| {
        let mut trainer = build(plain(replicas));
        trainer.checkpoints(dir.path(), 1).unwrap();
        trainer
    };
    let some = data().limit_batches(2);
    let mut one = limited(1);
    one.fit(&some, Some(&some), 1).unwrap();
    assert_eq!((one.steps(), one.history()[0].train.samples), (2, 32));
    assert_eq!(one.history()[0].validation.as_ref().unwrap().samples, 32);
    drop(one);
    let mut two = limited(2);
    two.resume().unwrap();
    assert!(two.fit(&data(), None, 3).is_err());
    two.fit(&some, Some(&some), 3).unwrap();
    let mut whole = build(plain(3));
    whole.fit(&some, Some(&some), 3).unwrap();
    assert_eq!((sha256(&mut two), two.steps()), (sha256(&mut whole), 6));
}

#[test]
fn evaluations_in_between_are_told_and_change_nothing() {
    let notes = Notes::default();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let own = seen.clone();
    let every =
        EvaluateEvery::steps(3, &data().limit_batches(1)).then(Influence::None, move |measured, run| {
            own.lock().unwrap().push((run.steps(), measured.samples));
            Ok(())
        });
    let mut trainer = fitted(plain(2).callback(every).observer(notes.clone()), &data());
    assert_eq!(*seen.lock().unwrap(), [(3, 16), (6, 16)]);
    assert!(notes.has("after step 6, validation: loss "));
    assert_eq!(sha256(&mut trainer), sha256(&mut fitted(plain(1), &data())));
    assert!(plain(1).callback(EvaluateEvery::steps(0, &data())).build(&data().fields().unwrap()).is_err());
}

/// A loss that was set stays where another is added.
#[test]
fn losses_add_up_however_they_are_told() {
    let rows = |f: fn(usize) -> f32| Values::F32((0..40).map(f).collect());
    let data = Memory::new("x", [1], rows(|i| i as f32 / 40.0)).unwrap();
    let data = data.with("y", [1], rows(|i| (i % 3) as f32)).unwrap();
    let data = Loader::new(data.with("other", [1], rows(|i| (i % 5) as f32)).unwrap());
    let train = |told: fn(Builder) -> Builder| {
        let builder = told(Trainer::builder(Dense::new(1))).replicas(1);
        let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        trainer.tensor("weight").unwrap().unwrap()
    };
    let both = train(|b| {
        let b = b.loss_between("output", "y", MeanSquaredError, 1.0);
        b.loss_between("output", "other", MeanSquaredError, 0.5)
    });
    assert_eq!(
        both,
        train(|b| b.loss(MeanSquaredError).loss_between("output", "other", MeanSquaredError, 0.5))
    );
    assert_ne!(both, train(|b| b.loss(MeanSquaredError)));
    let replaced =
        |b: Builder| b.loss_between("output", "other", MeanSquaredError, 0.5).loss(MeanSquaredError);
    assert_eq!(train(replaced), train(|b| b.loss(MeanSquaredError)));
}
