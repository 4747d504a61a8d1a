//! Callbacks set learning rates, in runs in phases too.

use std::sync::{Arc, Mutex};

use unisono::data::Loader;
use unisono::{
    Adam, Builder, Callback, Influence, Optimizer, PauseAfter, Phase, Plateau, PrintSamples, ReduceOnPlateau,
    Scalar, Schedule, Sgd, Trainer, Update, Var, on_epoch, on_step,
};
use unisono_tests::{loader, perceptron};

use crate::{Notes, others, sha256};

fn data() -> Loader {
    loader(50, 5).unwrap()
}

fn phased(replicas: usize) -> Builder {
    let head = Phase::new("head").trains(|name| name.starts_with("3.")).optimizer(Sgd::new(0.4)).steps(2);
    let base = Phase::new("base").optimizer(Adam::new(0.01));
    perceptron(8).phase(head).phase(base).global_batch(16).replicas(replicas)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().fields().unwrap()).unwrap()
}

/// Keeps the learning rate of each step.
fn told(builder: Builder) -> (Builder, Arc<Mutex<Vec<f64>>>) {
    let rates = Arc::new(Mutex::new(Vec::new()));
    let kept = rates.clone();
    let keep = on_step("rates", Influence::None, move |step, _| {
        kept.lock().unwrap().push(step.learning_rate.unwrap());
        Ok(())
    });
    (builder.callback(keep), rates)
}

fn close(rates: &[f64], expected: &[f64]) {
    assert_eq!(rates.len(), expected.len(), "{rates:?}");
    assert!(rates.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-12), "{rates:?} {expected:?}");
}

/// The steps are h h b h | h b h h: a rate that is set after step 1 holds from the second step of the head
/// after it.
#[test]
fn a_rate_of_a_phase_holds_from_the_second_of_its_steps_on() {
    let set = on_step("set", Influence::By("1".into()), |step, run| {
        assert_eq!(run.phases(), ["head", "base"]);
        match step.step {
            1 => run.set_learning_rate_of("head", 0.1),
            2 => run.scale_learning_rate(0.5),
            _ => Ok(()),
        }
    });
    let (builder, rates) = told(phased(1).callback(set));
    let mut trainer = build(builder);
    trainer.fit(&data(), None, 2).unwrap();
    // What is asked after step 2 is a half of the rates that were asked for before.
    close(&rates.lock().unwrap(), &[0.4, 0.4, 0.01, 0.4, 0.05, 0.01, 0.05, 0.05]);
}

#[test]
fn wishes_for_phases_that_are_not_there_are_errors() {
    let wish = |phase: &'static str| {
        on_epoch("wish", Influence::None, move |_, run| run.set_learning_rate_of(phase, 0.1))
    };
    let error = build(phased(1).callback(wish("critic"))).fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("no phase \"critic\": there is head, base"), "{error}");
    let plain = perceptron(8).global_batch(16).replicas(1);
    let error = build(plain.callback(wish("critic"))).fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("no phase \"critic\": there is none"), "{error}");
}

/// The error comes before the first step, not when the rate should fall.
#[test]
fn a_plateau_that_can_lower_no_rate_is_an_error_before_the_first_step() {
    let plateau = || ReduceOnPlateau::new(Plateau::lowest("loss"));
    let mut trainer = build(phased(1).callback(plateau().of_phase("heads")));
    let error = trainer.fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("no phase \"heads\": there is head, base"), "{error}");
    assert_eq!(trainer.steps(), 0);
    let mut trainer = build(perceptron(8).optimizer(Fixed).global_batch(16).callback(plateau()));
    let error = trainer.fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("fixed has no schedule that can be changed"), "{error}");
    assert_eq!(trainer.steps(), 0);
}

/// Gradient descent with a rate that nothing changes.
struct Fixed;

impl Optimizer for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn scalars(&self, _step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", 0.1)]
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        weight - gradient * cx.scalar("lr")
    }
}

fn steered(replicas: usize) -> Builder {
    let plateau = || Plateau::lowest("loss").patience(0).threshold(0.9).factor(0.5);
    phased(replicas)
        .callback(ReduceOnPlateau::new(plateau().least(0.15)).of_phase("head"))
        .callback(ReduceOnPlateau::new(plateau()))
        .callback(on_step("moody", Influence::By("1".into()), |step, run| match step.step % 5 {
            2 => run.set_learning_rate_of("base", 0.01 + step.now.loss / 100.0),
            _ => Ok(()),
        }))
}

#[test]
fn rates_of_phases_are_the_same_on_any_replicas_and_over_a_resume() {
    let train = data();
    let mut one = build(steered(1));
    one.fit(&train, None, 5).unwrap();
    let expected = sha256(&mut one);
    for &replicas in others() {
        let mut trainer = build(steered(replicas));
        trainer.fit(&train, None, 5).unwrap();
        assert_eq!(sha256(&mut trainer), expected, "{replicas} replicas");
    }
    for pause in [7, 8] {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = build(steered(2).callback(PauseAfter::steps(pause)));
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.fit(&train, None, 5).unwrap();
        drop(trainer);
        let mut trainer = build(steered(3));
        trainer.checkpoints(dir.path(), 0).unwrap();
        assert_eq!(trainer.resume().unwrap().unwrap().step, pause);
        trainer.fit(&train, None, 5).unwrap();
        assert_eq!(sha256(&mut trainer), expected, "paused after step {pause}");
    }
}

/// The schedule's own plateau is the reference: both lower the rate at the end of the same epochs.
#[test]
fn the_callback_reduces_as_the_schedule_does() {
    let plateau = || Plateau::lowest("loss").patience(1).threshold(0.5).factor(0.5).least(0.2);
    let plain = |schedule: Schedule| perceptron(8).optimizer(Sgd::new(schedule)).global_batch(16).replicas(1);
    let (by_schedule, expected) = told(plain(Schedule::constant(1.0).reduce_on(plateau())));
    let (by_callback, rates) = told(plain(1.0.into()).callback(ReduceOnPlateau::new(plateau())));
    let [mut a, mut b] = [by_schedule, by_callback].map(build);
    a.fit(&data(), None, 12).unwrap();
    b.fit(&data(), None, 12).unwrap();
    assert_eq!(*rates.lock().unwrap(), *expected.lock().unwrap());
    assert_eq!(rates.lock().unwrap().last(), Some(&0.2));
    assert_eq!(a.tensor("0.weight").unwrap().unwrap(), b.tensor("0.weight").unwrap().unwrap());
    assert!(!ReduceOnPlateau::new(plateau()).awaits_steps());
    let unknown = ReduceOnPlateau::new(Plateau::lowest("f1"));
    let error = plain(1.0.into()).callback(unknown).build(&data().fields().unwrap()).err().unwrap();
    assert!(error.to_string().contains("\"f1\", but there is only loss"), "{error}");
}

/// Epochs before a phase say nothing of it: neither their best loss counts, nor how many were no better.
#[test]
fn the_callback_of_a_phase_counts_the_epochs_of_the_phase() {
    let plateau = || Plateau::lowest("loss").patience(0).threshold(0.99).factor(0.5);
    let phased = |schedule: Schedule| {
        let first = Phase::new("first").optimizer(Sgd::new(0.1)).epochs(0..4);
        let second = Phase::new("second").optimizer(Sgd::new(schedule)).epochs(4..9);
        perceptron(8).phase(first).phase(second).global_batch(16).replicas(1)
    };
    let (by_schedule, expected) = told(phased(Schedule::constant(0.1).reduce_on(plateau())));
    let (by_callback, rates) =
        told(phased(0.1.into()).callback(ReduceOnPlateau::new(plateau()).of_phase("second")));
    for builder in [by_schedule, by_callback] {
        build(builder).fit(&data(), None, 8).unwrap();
    }
    assert_eq!(*rates.lock().unwrap(), *expected.lock().unwrap());
    close(&rates.lock().unwrap()[20..], &[[0.1; 4], [0.05; 4], [0.025; 4]].concat());
    let unknown = phased(0.1.into()).callback(ReduceOnPlateau::new(plateau()).of_phase("third"));
    let error = build(unknown).fit(&data(), None, 1).unwrap_err().to_string();
    assert!(error.contains("no phase \"third\": there is first, second"), "{error}");
}

#[test]
fn samples_are_printed_every_so_many_epochs() {
    let few = loader(3, 9).unwrap();
    let print = PrintSamples::new(&few, |all| format!("{:?}", all.iter().next().unwrap().shape)).every(2);
    assert!(!print.awaits_steps());
    let texts = Notes::default();
    let mut trainer =
        build(perceptron(8).global_batch(16).replicas(1).callback(print).observer(texts.clone()));
    trainer.fit(&data(), None, 5).unwrap();
    assert_eq!(texts.all("samples: "), ["samples: [3, 3]", "samples: [3, 3]"]);
    let never = PrintSamples::new(&few, |_| String::new()).every(0);
    assert!(perceptron(8).callback(never).build(&data().fields().unwrap()).is_err());
}
