//! A learning rate that follows the history of the run is the same on any replicas, and after a resume.

use std::sync::{Arc, Mutex};

use unisono::{
    AdamW, Builder, Epoch, Groups, Influence, Optimizer, Plateau, ReduceOnPlateau, Scalar, Schedule, Sgd,
    Update, Var, on_epoch,
};
use unisono_tests::{loader, perceptron};

fn reducing(watched: &str) -> Builder {
    // Hardly any epoch is better by half, so after the first few each epoch reduces the rate.
    let plateau = Plateau::lowest(watched).patience(0).threshold(0.5).factor(0.3);
    perceptron(8)
        .optimizer(AdamW::new(Schedule::constant(0.02).reduce_on(plateau)))
        .global_batch(16)
        .shards(4)
}

#[test]
fn a_resumed_run_takes_it_down_where_the_run_would_have() {
    let (train, held_out) = (loader(50, 5).unwrap(), loader(20, 6).unwrap());
    let fields = train.fields().unwrap();
    let state = |builder: Builder, replicas: usize| {
        let mut trainer = builder.replicas(replicas).build(&fields).unwrap();
        trainer.fit(&train, Some(&held_out), 5).unwrap();
        (trainer.state_sha256().unwrap(), trainer.history().clone())
    };
    let expected = state(reducing("loss"), 1);
    assert_eq!(state(reducing("loss"), 3), expected);
    let constant = perceptron(8).optimizer(AdamW::new(0.02)).global_batch(16).shards(4);
    let constant = state(constant, 1);
    assert_eq!(constant.1[0], expected.1[0], "the first epoch has nothing to look back to");
    assert_ne!(constant.0, expected.0);

    let dir = tempfile::tempdir().unwrap();
    let mut first = reducing("loss").replicas(2).build(&fields).unwrap();
    first.checkpoints(dir.path(), 0).unwrap();
    first.fit(&train, Some(&held_out), 3).unwrap();
    drop(first);
    let mut second = reducing("loss").replicas(3).build(&fields).unwrap();
    second.checkpoints(dir.path(), 0).unwrap();
    second.resume().unwrap().unwrap();
    second.fit(&train, Some(&held_out), 5).unwrap();
    assert_eq!((second.state_sha256().unwrap(), second.history().clone()), expected);
}

#[test]
fn what_is_not_measured_cannot_be_watched() {
    let fields = loader(10, 1).unwrap().fields().unwrap();
    let error = reducing("f1").build(&fields).err().unwrap().to_string();
    assert_eq!(error, "optimizer: a plateau of \"f1\", but there is only loss accuracy");
}

/// Descent that does not go on from a history of so many epochs.
struct Forgetful(usize);

impl Optimizer for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }
    fn scalars(&self, _: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", 0.1)]
    }
    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        if history.len() < self.0 { Ok(()) } else { Err("too much to remember".into()) }
    }
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        weight - gradient * cx.scalar("lr")
    }
}

#[test]
fn a_resume_that_the_optimizer_refuses_changes_nothing() {
    let train = loader(50, 5).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let build = |most: usize| {
        let builder = perceptron(8).optimizer(Forgetful(most)).global_batch(16).shards(4);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer
    };
    let mut first = build(9);
    first.fit(&train, None, 3).unwrap();
    drop(first);
    let mut second = build(3);
    let before = second.state_sha256().unwrap();
    let error = second.resume().unwrap_err().to_string();
    assert!(error.contains("the optimizer cannot continue from it: too much to remember"), "{error}");
    assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
    assert_eq!((second.state_sha256().unwrap(), second.steps(), second.history().len()), (before, 0, 0));
}

/// A resume that is refused leaves nothing of the other run's history behind.
#[test]
fn a_refused_resume_does_not_reduce_the_rate() {
    let (train, held_out) = (loader(50, 5).unwrap(), loader(20, 6).unwrap());
    let fields = train.fields().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut other = reducing("loss").replicas(1).build(&fields).unwrap();
    other.checkpoints(dir.path(), 0).unwrap();
    other.fit(&train, Some(&held_out), 5).unwrap();
    drop(other);
    let clipped = || {
        let plateau = Plateau::lowest("loss").patience(0).threshold(0.5).factor(0.3);
        let optimizer = AdamW::new(Schedule::constant(0.02).reduce_on(plateau)).clip_value(0.125);
        perceptron(8).optimizer(optimizer).global_batch(16).shards(4).replicas(1).build(&fields).unwrap()
    };
    let mut refused = clipped();
    refused.checkpoints(dir.path(), 0).unwrap();
    refused.resume().unwrap_err();
    assert_eq!(refused.learning_rate(), Some(0.02));
    refused.clear_checkpoints().unwrap();
    let mut fresh = clipped();
    for trainer in [&mut refused, &mut fresh] {
        trainer.fit(&train, Some(&held_out), 2).unwrap();
    }
    assert_eq!(refused.state_sha256().unwrap(), fresh.state_sha256().unwrap());
}

/// The callback lowers the rate of each optimizer by itself, and none below its least, also in a warm-up: as
/// the plateau of each schedule does.
#[test]
fn a_callback_lowers_each_rate_as_its_schedule_would() {
    let train = loader(50, 5).unwrap();
    let plateau = || Plateau::lowest("loss").patience(0).threshold(0.9).factor(0.1).least(0.005);
    let fitted = |schedule: fn(Schedule, Plateau) -> Schedule, callback: Option<ReduceOnPlateau>| {
        let large = Sgd::new(schedule(Schedule::constant(0.1).warm_up(6), plateau()));
        let small = Sgd::new(schedule(Schedule::constant(0.001), plateau()));
        let groups = Groups::new(large).group(|name| name.ends_with("bias"), small);
        let builder = perceptron(8).optimizer(groups).global_batch(16).replicas(1);
        let builder = callback.into_iter().fold(builder, Builder::callback);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        trainer.fit(&train, None, 4).unwrap();
        (trainer.learning_rate().unwrap(), trainer.weights().unwrap())
    };
    let by_callback = fitted(|schedule, _| schedule, Some(ReduceOnPlateau::new(plateau())));
    assert_eq!(by_callback, fitted(Schedule::reduce_on, None));
    assert_eq!(by_callback.0, 0.005);
}

/// The loop of one's own lowers it too: what it measures is in the run's history.
#[test]
fn epochs_of_ones_own_loop_lower_it() {
    let (train, held_out) = (loader(50, 5).unwrap(), loader(20, 6).unwrap());
    let build = || reducing("loss").replicas(1).build(&train.fields().unwrap()).unwrap();
    let mut fitted = build();
    fitted.fit(&train, Some(&held_out), 4).unwrap();
    let mut own = build();
    for epoch in 0..4 {
        let steps =
            train.clone().batch(16).epoch(epoch).unwrap().map(|batch| own.step(&batch.unwrap()).unwrap());
        let last = steps.last().unwrap();
        let validation = own.evaluate(&held_out).unwrap();
        // An epoch that is ended twice is one.
        own.notify_epoch_ended(&last, None).unwrap();
        own.notify_epoch_ended(&last, Some(validation)).unwrap();
    }
    assert_eq!(own.history(), fitted.history());
    assert_eq!(own.learning_rate(), fitted.learning_rate());
    assert_eq!(own.state_sha256().unwrap(), fitted.state_sha256().unwrap());
}

/// A factor scales what reductions have left of the rate, and later reductions lower the product.
#[test]
fn factors_and_reductions_apply_in_the_order_in_which_they_came() {
    let train = loader(50, 5).unwrap();
    let plateau = Plateau::lowest("loss").patience(0).threshold(0.99).factor(0.1).least(0.005);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let scales = on_epoch("scales", Influence::NotCovered, move |epoch, run| {
        // From the second epoch on, each is a reduction.
        match epoch.epoch {
            1 => run.scale_learning_rate(0.5)?,
            2 => {
                run.scale_learning_rate(4.0)?;
                run.scale_learning_rate(10.0)?;
            }
            _ => {}
        }
        told.lock().unwrap().push(run.learning_rate().unwrap() as f32);
        Ok(())
    });
    let optimizer = Sgd::new(Schedule::constant(0.04));
    let builder = perceptron(8).optimizer(optimizer).global_batch(16).replicas(1);
    let builder = builder.callback(ReduceOnPlateau::new(plateau)).callback(scales);
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    trainer.fit(&train, None, 4).unwrap();
    // 0.005 by the first reduction, of which the half is below the least: the second one leaves it.
    assert_eq!(*seen.lock().unwrap(), [0.04, 0.0025, 0.1, 0.01]);
}

/// Batches that come from no loader are all of epoch 0, and their epochs are counted.
#[test]
fn epochs_of_batches_without_a_loader_are_counted() {
    let train = loader(16, 5).unwrap();
    let mut own = reducing("loss").replicas(1).build(&train.fields().unwrap()).unwrap();
    let batch = train.batch(16).epoch(0).unwrap().next().unwrap().unwrap();
    for _ in 0..3 {
        let step = own.step(&batch).unwrap();
        own.notify_epoch_ended(&step, None).unwrap();
    }
    let numbers: Vec<(u32, u64)> = own.history().iter().map(|epoch| (epoch.epoch, epoch.steps)).collect();
    assert_eq!(numbers, [(0, 1), (1, 2), (2, 3)]);
}
