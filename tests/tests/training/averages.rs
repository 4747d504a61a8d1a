//! Moving averages of weights in the places of weights, wherever a model is used and not trained.

use unisono::checkpoint::WeightPrecision;
use unisono::data::Loader;
use unisono::{
    Accuracy, AdamW, BatchNorm, Builder, Chain, Dense, EarlyStopping, ExportedModel, Groups, Influence,
    Optimizer, PauseAfter, Phase, Relu, Sequential, Sgd, Trainer, on_epoch,
};
use unisono_tests::loader;

use crate::{others, sha256};

fn data() -> (Loader, Loader) {
    (loader(50, 5).unwrap(), loader(20, 6).unwrap())
}

/// Has a frozen parameter, which has no average, and statistics, which have some.
fn model() -> Sequential {
    Sequential::new().add(Dense::new(8)).add(BatchNorm::new()).add(Relu).add(Dense::new(3))
}

fn builder(replicas: usize) -> Builder {
    let optimizer = AdamW::new(0.05).freeze(|name| name == "0.bias").average_weights(0.8);
    let builder = Trainer::builder(model()).optimizer(optimizer).metric(Accuracy).seed(4);
    builder.global_batch(16).replicas(replicas)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().0.fields().unwrap()).unwrap()
}

/// Returns a trainer without averages, with the weights and averages of another in the places of the weights.
fn with_averages_of(trainer: &mut Trainer) -> Trainer {
    let mut other = build(Trainer::builder(model()).global_batch(16).replicas(1));
    for (name, _) in trainer.tensors() {
        let average = trainer.tensor(&format!("{name}/average"));
        let values = average.or_else(|| trainer.tensor(&name)).unwrap().unwrap();
        other.set_tensor(&name, &values).unwrap();
    }
    other
}

#[test]
fn evaluations_predictions_and_exports_use_averages_and_training_does_not() {
    let (train, held_out) = data();
    let mut plain = build(builder(1));
    plain.fit(&train, Some(&held_out), 3).unwrap();
    let mut one = build(builder(1).use_average_weights());
    // Before the first step there are no averages.
    let [first, start] = [&mut one, &mut build(builder(1))].map(|t| t.evaluate(&held_out).unwrap());
    assert_eq!(first, start);
    assert!(first.loss > 0.5);
    one.fit(&train, Some(&held_out), 3).unwrap();
    assert_eq!(one.tensor("3.weight").unwrap().unwrap(), plain.tensor("3.weight").unwrap().unwrap());
    assert_ne!(one.history(), plain.history());
    let of_train = |trainer: &Trainer| trainer.history().iter().map(|e| e.train.loss).collect::<Vec<_>>();
    assert_eq!(of_train(&one), of_train(&plain));

    let mut reference = with_averages_of(&mut one);
    let expected = reference.evaluate(&held_out).unwrap();
    let last = one.history().last().unwrap().validation.clone().unwrap();
    assert_eq!(
        (last.loss, &last.metrics[0].1),
        (expected.loss, &one.evaluate(&held_out).unwrap().metrics[0].1)
    );
    assert_eq!(one.predict(&held_out).unwrap(), reference.predict(&held_out).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    one.export(&path, WeightPrecision::F32).unwrap();
    let exported = ExportedModel::open(&path).unwrap();
    let mut trainer = build(Trainer::builder(exported.layer()).global_batch(16).replicas(1));
    trainer.load_model(&path, &unisono::checkpoint::Plan::new()).unwrap();
    assert_eq!(trainer.predict(&held_out).unwrap(), reference.predict(&held_out).unwrap());

    // Where the weights become the averages, nothing changes of what the model predicts.
    let before = one.predict(&held_out).unwrap();
    assert!(one.adopt_average_weights().unwrap());
    assert_eq!(one.predict(&held_out).unwrap(), before);
    assert_eq!(one.tensor("3.weight").unwrap().unwrap(), reference.tensor("3.weight").unwrap().unwrap());
    assert!(!build(builder(1)).adopt_average_weights().unwrap());
}

/// Follows the averages of the statistics step by step.
#[test]
fn statistics_are_averaged_with_the_weights_as_timm_does() {
    let (train, held_out) = data();
    let mut trainer = build(builder(1).use_average_weights());
    let names = ["1.running_mean", "1.running_var", "3.weight"];
    let mut averages: Vec<Vec<f32>> = vec![vec![]; names.len()];
    for (step, batch) in train.clone().batch(16).epoch(0).unwrap().enumerate() {
        trainer.step(&batch.unwrap()).unwrap();
        for (name, average) in names.iter().zip(&mut averages) {
            let new = trainer.tensor(name).unwrap().unwrap();
            if step == 0 {
                average.clone_from(&new);
            }
            average.iter_mut().zip(&new).for_each(|(average, new)| *average += (new - *average) * 0.2);
            let kept = trainer.tensor(&format!("{name}/average")).unwrap().unwrap();
            let far = kept.iter().zip(&*average).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-5, "{name} in step {step}: {kept:?} and not {average:?}");
        }
    }
    assert_ne!(averages[1], trainer.tensor(names[1]).unwrap().unwrap());
    // They are used: own weights with these statistics give what the averages give.
    let own = trainer.evaluate(&held_out).unwrap().loss;
    assert_eq!(own, with_averages_of(&mut trainer).evaluate(&held_out).unwrap().loss);
}

#[test]
fn a_tensor_that_is_set_takes_the_place_of_its_average() {
    let (train, held_out) = data();
    let mut trainer = build(builder(1).use_average_weights());
    trainer.fit(&train, None, 1).unwrap();
    trainer.set_tensor("3.weight", &[0.0; 24]).unwrap();
    trainer.set_tensor("3.bias", &[0.0; 3]).unwrap();
    let loss = trainer.evaluate(&held_out).unwrap().loss;
    assert!((loss - 3_f64.ln()).abs() < 1e-6, "{loss}");
}

#[test]
fn a_statistic_is_averaged_where_its_group_averages_weights() {
    let groups = |of_norm: bool| {
        let averaging = Sgd::new(0.1).average_weights(0.5);
        let (rest, norm): (Chain, Chain) =
            if of_norm { (Sgd::new(0.1).into(), averaging) } else { (averaging, Sgd::new(0.1).into()) };
        let groups = Groups::new(rest).group(|name| name.starts_with("1."), norm);
        let mut trainer = build(Trainer::builder(model()).optimizer(groups).global_batch(16).replicas(1));
        trainer.fit(&data().0, None, 1).unwrap();
        ["1.running_var/average", "1.weight/average", "3.weight/average"]
            .map(|name| trainer.tensor(name).is_some())
    };
    assert_eq!(groups(true), [true, true, false]);
    assert_eq!(groups(false), [false, false, true]);
    // A statistic that is frozen does not move, and has no average.
    let mut frozen = build(builder(1).freeze_statistics(|_| true));
    assert!(frozen.tensor("1.running_var/average").is_none() && frozen.tensor("1.weight/average").is_some());
}

#[test]
fn averages_of_statistics_are_the_same_where_owners_share_the_optimizer() {
    let (train, held_out) = data();
    let run = |replicas: usize, owners: Option<usize>| {
        let builder = builder(replicas).use_average_weights();
        let builder = owners.into_iter().fold(builder, |builder, owners| builder.shard_optimizer(owners));
        let mut trainer = build(builder);
        trainer.fit(&train, Some(&held_out), 2).unwrap();
        (sha256(&mut trainer), trainer.history().clone())
    };
    let alone = run(1, None);
    for (replicas, owners) in [(2, 1), (3, 2)] {
        assert_eq!(run(replicas, Some(owners)), alone, "{replicas} replicas, {owners} owners");
    }
}

fn steered(replicas: usize) -> Builder {
    with_callbacks(builder(replicas).use_average_weights())
}

fn with_callbacks(builder: Builder) -> Builder {
    let swap = Influence::By("swaps after epoch 3".into());
    builder.callback(EarlyStopping::lowest("loss").patience(3).restore_best()).callback(on_epoch(
        "swap",
        swap,
        |epoch, run| {
            if epoch.epoch == 3 { run.adopt_average_weights().map(drop) } else { Ok(()) }
        },
    ))
}

#[test]
fn averages_in_use_are_the_same_on_any_replicas_and_over_a_resume() {
    let (train, held_out) = data();
    let run = |trainer: &mut Trainer| {
        trainer.fit(&train, Some(&held_out), 40).unwrap();
        let used = trainer.evaluate(&held_out).unwrap();
        (sha256(trainer), trainer.history().clone(), used)
    };
    let mut one = build(steered(1));
    let expected = run(&mut one);
    // The best weights that are restored are those that were evaluated.
    assert!(one.stopped().is_some());
    let losses = expected.1.iter().map(|epoch| epoch.validation.as_ref().unwrap().loss);
    assert_eq!(expected.2.loss, losses.fold(f64::INFINITY, f64::min));
    for &replicas in others() {
        assert_eq!(run(&mut build(steered(replicas))), expected, "{replicas} replicas");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(steered(2).callback(PauseAfter::steps(14)));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.fit(&train, Some(&held_out), 40).unwrap();
    drop(trainer);
    let mut trainer = build(steered(3));
    trainer.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, 14);
    assert_eq!(run(&mut trainer), expected);
    drop(trainer);
    // A run that uses the weights is another one.
    let mut other = build(with_callbacks(builder(1)));
    other.checkpoints(dir.path(), 0).unwrap();
    let error = other.resume().unwrap_err().to_string();
    assert!(error.contains("model in use"), "{error}");
}

#[test]
fn averages_of_phases_are_used_from_their_first_steps_on() {
    let (train, held_out) = data();
    let built = |replicas| {
        let head = Phase::new("head").trains(|name| name.starts_with("3.")).epochs(0..1);
        let base = Phase::new("base").trains(|name| !name.starts_with("3.")).epochs(1..3);
        let builder = Trainer::builder(model())
            .phase(head.optimizer(Sgd::new(0.3).average_weights(0.5)))
            .phase(base.optimizer(Sgd::new(0.1).average_weights(0.9)));
        build(builder.global_batch(16).replicas(replicas).use_average_weights())
    };
    let mut one = built(1);
    one.fit(&train, None, 1).unwrap();
    let mut reference = build(Trainer::builder(model()).global_batch(16).replicas(1));
    for (name, _) in one.tensors() {
        let average = one.tensor(&format!("{name}/head/average"));
        reference.set_tensor(&name, &average.or_else(|| one.tensor(&name)).unwrap().unwrap()).unwrap();
    }
    assert_eq!(one.predict(&held_out).unwrap(), reference.predict(&held_out).unwrap());
    one.fit(&train, Some(&held_out), 3).unwrap();
    let mut three = built(3);
    three.fit(&train, None, 1).unwrap();
    three.fit(&train, Some(&held_out), 3).unwrap();
    assert_eq!((sha256(&mut three), three.history()), (sha256(&mut one), one.history()));
}

/// The head's parameters are trained by one phase and then by another one, which may keep averages as well.
#[test]
fn where_phases_train_a_parameter_one_after_another_the_average_is_the_last_ones() {
    let (train, held_out) = data();
    for of_all in [true, false] {
        let head = Phase::new("head").trains(|name| name.starts_with("3.")).epochs(0..1);
        let all = Phase::new("all").epochs(1..9);
        let sgd = || Sgd::new(0.2);
        let all = if of_all { all.optimizer(sgd().average_weights(0.7)) } else { all.optimizer(sgd()) };
        let builder = Trainer::builder(model()).phase(head.optimizer(sgd().average_weights(0.5))).phase(all);
        let mut trainer = build(builder.global_batch(16).replicas(1).use_average_weights());
        let mut reference = build(Trainer::builder(model()).global_batch(16).replicas(1));
        for (epochs, phase) in [(1, "head"), (3, "all")] {
            trainer.fit(&train, None, epochs).unwrap();
            for (name, _) in trainer.tensors() {
                let average = trainer.tensor(&format!("{name}/{phase}/average"));
                let values = average.or_else(|| trainer.tensor(&name)).unwrap().unwrap();
                reference.set_tensor(&name, &values).unwrap();
            }
            let used = trainer.predict(&held_out).unwrap();
            assert_eq!(used, reference.predict(&held_out).unwrap(), "{phase}, {of_all}");
        }
        assert_eq!(trainer.adopt_average_weights().unwrap(), of_all);
        assert_eq!(trainer.predict(&held_out).unwrap(), reference.predict(&held_out).unwrap());
    }
}

/// What evaluations read of what the optimizer keeps is on all replicas, also where that is shared out.
#[test]
fn averages_in_use_are_the_same_where_the_optimizers_state_is_shared_out() {
    let (train, held_out) = data();
    let run = |builder: Builder| {
        let mut trainer = build(builder.use_average_weights());
        trainer.fit(&train, Some(&held_out), 3).unwrap();
        let predicted = trainer.predict(&held_out).unwrap();
        (trainer.history().clone(), predicted, sha256(&mut trainer))
    };
    let expected = run(builder(1));
    for replicas in [2, 3] {
        assert!(run(builder(replicas).shard_optimizer(1)) == expected, "{replicas} replicas");
    }
}

#[test]
fn averages_that_nobody_keeps_are_an_error() {
    let builder = Trainer::builder(model()).use_average_weights().replicas(1);
    let error = builder.build(&data().0.fields().unwrap()).err().unwrap().to_string();
    assert!(error.contains("no parameter has an average: Optimizer::average_weights keeps them"), "{error}");
}
