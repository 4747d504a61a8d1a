//! Phases: parts of a model take turns, with losses and optimizers of their own.

use unisono::data::Loader;
use unisono::{
    Adam, BatchNorm, BinaryCrossEntropyWithLogits, Builder, Dense, Influence, MeanSquaredError, Model,
    Outputs, PauseAfter, Phase, Relu, Sequential, Sgd, Trainer, on_step,
};
use unisono_tests::{loader, perceptron};

use crate::{others, sha256};

fn data() -> Loader {
    let all = loader(50, 5).unwrap();
    all.map("fields", |sample, draws| {
        let noise: Vec<f32> = (0..4).map(|_| draws.normal()).collect();
        for (name, value) in [("real", 1.0), ("fake", 0.0), ("fooled", 1.0)] {
            sample.set(name, unisono::data::Field::f32([1], [value]));
        }
        sample.set("noise", unisono::data::Field::f32([4], noise));
    })
}

/// A generator, and a critic that tells what it makes from the data.
fn gan() -> Model {
    let generator = Sequential::new().add(Dense::new(5)).add(BatchNorm::new()).add(Relu).add(Dense::new(6));
    let critic = Sequential::new().add(Dense::new(5)).add(Relu).add(Dense::new(1));
    Model::new(move |cx, x| {
        let made = cx.apply("generator", &generator, &x["noise"]);
        Outputs::new()
            .with("real", &cx.apply("critic", &critic, &x["x"]))
            .with("fake", &cx.apply("critic", &critic, &made))
            .with("fooled", &cx.apply("critic", &critic, &made))
    })
}

fn builder(replicas: usize) -> Builder {
    let critic = Phase::new("critic")
        .trains(|name| name.starts_with("critic."))
        .loss_of("real", BinaryCrossEntropyWithLogits, 0.5)
        .loss_of("fake", BinaryCrossEntropyWithLogits, 0.5)
        .optimizer(Adam::new(0.01))
        .steps(2);
    let generator = Phase::new("generator")
        .trains(|name| name.starts_with("generator."))
        .loss_of("fooled", BinaryCrossEntropyWithLogits, 1.0)
        .optimizer(Sgd::new(0.1).momentum(0.9));
    Trainer::builder(gan()).phase(critic).phase(generator).global_batch(16).replicas(replicas)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().fields().unwrap()).unwrap()
}

#[test]
fn phases_are_the_same_on_any_replicas_and_train_their_parts_alone() {
    let changed = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let (told, mut before) = (changed.clone(), Vec::new());
    let look = on_step("look", Influence::None, move |_, run| {
        let mut now = Vec::new();
        for name in ["critic.0.weight", "generator.0.weight"] {
            now.push(run.tensor(name).unwrap()?);
        }
        if !before.is_empty() {
            let moved = [now[0] != before[0], now[1] != before[1]];
            let turn = match moved {
                [true, false] => 'c',
                [false, true] => 'g',
                _ => '?',
            };
            told.lock().unwrap().push(turn);
        }
        before = now;
        Ok(())
    });
    let mut one = build(builder(1).callback(look));
    one.fit(&data(), Some(&data()), 3).unwrap();
    assert_eq!(*changed.lock().unwrap(), "cgccgccgccg");
    let names: Vec<&str> = one.history()[0].train.metrics.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["real loss", "fake loss", "fooled loss"]);
    assert!(one.tensor("critic.0.weight/critic/exp_avg").is_some());
    assert!(one.tensor("critic.0.weight/generator/momentum_buffer").is_none());
    for &replicas in others() {
        let mut trainer = build(builder(replicas));
        trainer.fit(&data(), Some(&data()), 3).unwrap();
        assert_eq!(sha256(&mut trainer), sha256(&mut one));
        assert_eq!(trainer.history(), one.history());
    }
}

#[test]
fn a_run_in_phases_resumes_within_a_turn() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(builder(2).callback(PauseAfter::steps(7)));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.fit(&data(), None, 3).unwrap();
    drop(trainer);
    let mut trainer = build(builder(3));
    trainer.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, 7);
    trainer.fit(&data(), None, 3).unwrap();
    let mut whole = build(builder(1));
    whole.fit(&data(), None, 3).unwrap();
    assert_eq!(sha256(&mut trainer), sha256(&mut whole));
    // Other turns are another run.
    let other = Phase::new("critic").optimizer(Adam::new(0.01)).steps(3);
    let other = Trainer::builder(gan()).phase(other).phase(Phase::new("generator"));
    let mut other = build(other.loss_of("real", MeanSquaredError, 1.0).global_batch(16).replicas(1));
    other.checkpoints(dir.path(), 0).ok();
    drop(trainer);
    other.checkpoints(dir.path(), 0).unwrap();
    assert!(other.resume().is_err());
}

fn plain() -> Builder {
    perceptron(8).global_batch(16).replicas(1)
}

fn fitted(builder: Builder, epochs: u32) -> Trainer {
    let mut trainer = builder.build(&loader(50, 5).unwrap().fields().unwrap()).unwrap();
    trainer.fit(&loader(50, 5).unwrap(), None, epochs).unwrap();
    trainer
}

fn weights(trainer: &mut Trainer) -> Vec<Vec<f32>> {
    let names = trainer.tensors();
    names.iter().map(|(name, _)| trainer.tensor(name).unwrap().unwrap()).collect()
}

/// The references are trainers without phases.
#[test]
fn one_phase_is_a_plain_run_and_an_unfreezing_is_two() {
    let mut phased = fitted(plain().phase(Phase::new("all").optimizer(Adam::new(0.01))), 2);
    let mut reference = fitted(plain().optimizer(Adam::new(0.01)), 2);
    assert_eq!(weights(&mut phased), weights(&mut reference));
    assert_eq!(phased.history(), reference.history());

    let is_base = |name: &str| name.starts_with("0.");
    let head = Phase::new("head").trains(move |name| !is_base(name)).optimizer(Sgd::new(0.2)).epochs(0..1);
    let all = Phase::new("all").optimizer(Sgd::new(0.1)).epochs(1..9);
    let mut unfrozen = fitted(plain().phase(head).phase(all), 2);
    use unisono::Optimizer as _;
    let mut first = fitted(plain().optimizer(Sgd::new(0.2).freeze(is_base)), 1);
    let values = weights(&mut first);
    let mut second =
        plain().optimizer(Sgd::new(0.1)).build(&loader(50, 5).unwrap().fields().unwrap()).unwrap();
    for ((name, _), values) in first.tensors().iter().zip(&values) {
        second.set_tensor(name, values).unwrap();
    }
    for batch in loader(50, 5).unwrap().batch(16).epoch(1).unwrap() {
        second.step(&batch.unwrap()).unwrap();
    }
    assert_eq!(weights(&mut unfrozen), weights(&mut second));
}

/// An optimizer counts the steps of its own phase: Adam's bias correction depends on them.
#[test]
fn each_optimizer_counts_its_own_steps() {
    let adam = || Adam::new(unisono::Schedule::constant(0.01).warm_up(5));
    let idle = Phase::new("idle").trains(|_| false);
    let mut phased = fitted(plain().phase(Phase::new("all").optimizer(adam())).phase(idle), 1);
    let mut own = plain().optimizer(adam()).build(&loader(50, 5).unwrap().fields().unwrap()).unwrap();
    for batch in loader(50, 5).unwrap().batch(16).epoch(0).unwrap().step_by(2) {
        own.step(&batch.unwrap()).unwrap();
    }
    assert_eq!(weights(&mut phased), weights(&mut own));
    assert_eq!(phased.learning_rate(), own.learning_rate());
}

/// The next step at the end of a phase's last epoch is the next phase's, and behind the last phase there is
/// none.
#[test]
fn callbacks_see_the_rate_of_the_phase_that_comes_next() {
    let first = Phase::new("first").optimizer(Sgd::new(0.5)).epochs(0..1);
    let second = Phase::new("second").optimizer(Sgd::new(0.25)).epochs(1..2);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let [ends, steps] = [seen.clone(), seen.clone()];
    let at_end = unisono::on_epoch("ends", Influence::None, move |_, run| {
        ends.lock().unwrap().push(run.learning_rate());
        Ok(())
    });
    let at_step = on_step("steps", Influence::None, move |_, run| {
        steps.lock().unwrap().push(run.learning_rate());
        Ok(())
    });
    let builder = plain().phase(first).phase(second).callback(at_end).callback(at_step);
    let trainer = fitted(builder, 2);
    let [a, b, none] = [Some(0.5), Some(0.25), None];
    assert_eq!(*seen.lock().unwrap(), [a, a, a, b, b, b, b, b, none, none]);
    assert_eq!(trainer.learning_rate(), None);
}

/// A plateau counts the epochs in which its phase has turns.
#[test]
fn a_plateau_of_a_phase_begins_with_it() {
    let plateau = || unisono::Plateau::lowest("loss").patience(0).threshold(0.99).factor(0.5);
    let reduced = || unisono::Schedule::constant(0.1).reduce_on(plateau());
    let first = Phase::new("first").optimizer(Sgd::new(0.1)).epochs(0..4);
    let second = Phase::new("second").optimizer(Sgd::new(reduced())).epochs(4..9);
    let mut trainer = fitted(plain().phase(first).phase(second), 4);
    let rates: Vec<f32> = (5..8)
        .map(|epochs| {
            trainer.fit(&loader(50, 5).unwrap(), None, epochs).unwrap();
            trainer.learning_rate().unwrap() as f32
        })
        .collect();
    // The first epoch of the phase is the best so far, and those after it are not better by so much.
    assert_eq!(rates, [0.1, 0.05, 0.025]);
}

/// The losses of phases are those of the trainer where it has none of its own, in all that a builder tells.
#[test]
fn losses_of_phases_are_enough() {
    let phases =
        || {
            let critic = Phase::new("critic")
                .trains(|name| name.starts_with("critic."))
                .loss_between("real", "real", BinaryCrossEntropyWithLogits, 0.5)
                .loss_between("fake", "fake", BinaryCrossEntropyWithLogits, 0.5);
            let generator = Phase::new("generator")
                .trains(|name| name.starts_with("generator."))
                .loss_between("fake", "fooled", BinaryCrossEntropyWithLogits, 1.0);
            Trainer::builder(gan()).phase(critic).phase(generator).global_batch(16).replicas(1)
        };
    let fields = data().fields().unwrap();
    assert!(phases().count_parameters(&fields).unwrap() > 0);
    assert!(phases().memory(&fields, &[16]).is_ok());
    let program = phases().program(unisono::ProgramId::Train, &fields).unwrap();
    let mut trainer = build(phases());
    trainer.fit(&data(), None, 1).unwrap();
    let names: Vec<&str> = trainer.history()[0].train.metrics.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["real loss", "fake as fake loss", "fake as fooled loss"]);
    let outputs: Vec<&str> = program.outputs().iter().map(|output| &*output.name).collect();
    assert!(names.iter().all(|name| outputs.contains(name)), "{outputs:?}");
}

#[test]
fn phases_that_cannot_work_are_errors() {
    let refused = |builder: Builder| {
        let built = builder.build(&data().fields().unwrap());
        built.err().expect("it is refused").to_string()
    };
    let gan = || Trainer::builder(gan()).loss_of("real", MeanSquaredError, 1.0).replicas(1);
    for (phase, problem) in [
        (Phase::new("a/b"), "no slash"),
        (Phase::new("a").steps(0), "no steps"),
        (Phase::new("a").epochs(3..3), "no steps"),
        (Phase::new("a").loss_of("unreal", MeanSquaredError, 1.0), "unreal"),
    ] {
        let error = refused(gan().phase(phase));
        assert!(error.contains(problem), "{error}");
    }
    assert!(
        refused(gan().phase(Phase::new("a")).phase(Phase::new("a"))).contains("two phases have this name")
    );
    let mut short = build(gan().phase(Phase::new("a").epochs(0..1)));
    let error = short.fit(&data(), None, 2).unwrap_err().to_string();
    assert!(error.contains("none has turns in epoch 1"), "{error}");
    let none = build(gan().phase(Phase::new("a").trains(|name| name == "w")));
    assert!(none.notes().iter().any(|note| note.contains("trains none")), "{:?}", none.notes());
}
