//! Callbacks steer a run, the same way on any number of replicas, over losses, kills, resumes and ways back.

mod failing;
mod panics;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use unisono::checkpoint::list;
use unisono::data::Loader;
use unisono::{
    Audits, Builder, Callback, Control, EarlyStopping, Epoch, Error, EvaluateEvery, Influence, Observer,
    PauseAfter, Sgd, Step, Stop, Trainer, on_epoch, on_step,
};
use unisono_tests::{loader, perceptron};

const SAMPLES: usize = 50;
/// The steps of an epoch.
const STEPS: u64 = 4;

fn data() -> (Loader, Loader) {
    (loader(SAMPLES, 5).unwrap(), loader(20, 6).unwrap())
}

fn builder(replicas: usize) -> Builder {
    perceptron(8).optimizer(Sgd::new(0.5)).global_batch(16).replicas(replicas)
}

fn build(builder: Builder) -> Trainer {
    builder.build(&data().0.fields().unwrap()).unwrap()
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn has(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|note| note.contains(text))
    }
}

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Changes the learning rate by what it has seen so far, which it keeps.
struct Moody {
    /// The sum of the losses of all steps.
    sum: f64,
}

impl Callback for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn influence(&self) -> Influence {
        Influence::By("version 1".into())
    }

    fn state(&self) -> Value {
        self.sum.into()
    }

    fn restore(&mut self, state: &Value) -> Result<(), String> {
        self.sum = state.as_f64().ok_or_else(|| format!("{state} is no number"))?;
        Ok(())
    }

    fn step_ended(&mut self, step: &Step, run: &mut Control<'_>) -> Result<(), Error> {
        self.sum += step.now.loss;
        if step.step.is_multiple_of(3) { run.set_learning_rate(0.1 + self.sum.fract() / 2.0) } else { Ok(()) }
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut Control<'_>) -> Result<(), Error> {
        run.scale_learning_rate(0.9 + f64::from(epoch.epoch % 2) / 4.0)
    }
}

/// Has a callback with a memory, one that keeps weights, one that ends the run, and one that uses the model.
fn steered(replicas: usize) -> Builder {
    let held_out = data().1;
    builder(replicas)
        .callback(Moody { sum: 0.0 })
        .callback(EarlyStopping::lowest("loss").patience(3).restore_best())
        .callback(on_step("looks", Influence::None, move |step, run| {
            if step.step % 5 == 2 {
                assert_eq!(run.predict(&held_out)?.len(), 3 * 20);
                run.evaluate(&held_out)?;
                run.save();
            }
            Ok(())
        }))
}

/// Returns the state and the history of a run of [`steered`], and where it stopped.
fn result(trainer: &mut Trainer) -> (String, String, u64) {
    let history = format!("{:?}", trainer.history());
    let stopped = trainer.stopped().expect("the run stops early").clone();
    assert_eq!(stopped.by, "early stopping");
    assert_eq!(stopped.steps, trainer.steps());
    (trainer.state_sha256().unwrap(), history, stopped.steps)
}

fn undisturbed() -> (String, String, u64) {
    let (train, held_out) = data();
    let mut trainer = build(steered(1));
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    result(&mut trainer)
}

#[test]
fn a_steered_run_is_the_same_on_any_number_of_replicas() {
    let expected = undisturbed();
    assert!(expected.2 < 60 * STEPS);
    let (train, held_out) = data();
    for replicas in [2, 3, 7] {
        let mut trainer = build(steered(replicas));
        trainer.fit(&train, Some(&held_out), 60).unwrap();
        assert_eq!(result(&mut trainer), expected, "{replicas} replicas");
    }
}

/// The steps of the pauses are such that some are in the middle of an epoch, and one is the last.
#[test]
fn a_steered_run_is_the_same_over_pauses_and_resumes() {
    let expected = undisturbed();
    let (train, held_out) = data();
    let dir = tempfile::tempdir().unwrap();
    let run = |replicas, until: u64| {
        let mut trainer = build(steered(replicas).callback(PauseAfter::steps(until)));
        trainer.checkpoints(dir.path(), 3).unwrap();
        trainer.resume().unwrap();
        trainer.fit(&train, Some(&held_out), 60).unwrap();
        trainer
    };
    for (until, replicas) in
        [1, 2, 5, 8, 11, 12, expected.2 - 1].into_iter().zip([1, 2, 3].into_iter().cycle())
    {
        let trainer = run(replicas, until);
        assert_eq!((trainer.steps(), trainer.stopped()), (until, None));
    }
    let mut trainer = run(2, u64::MAX);
    assert_eq!(result(&mut trainer), expected);
    drop(trainer);
    // The run has ended: whoever resumes it trains no further, unless told to.
    let notes = Notes::default();
    let mut trainer = build(steered(1).observer(notes.clone()));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.resume().unwrap();
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    assert_eq!(result(&mut trainer), expected);
    assert!(
        notes.has("nothing to do: the run was ended after step"),
        "{notes:?}",
        notes = notes.0.lock().unwrap()
    );
    trainer.go_on();
    trainer.save().unwrap();
    drop(trainer);
    let mut trainer = build(steered(2));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.resume().unwrap();
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    // Its patience begins anew.
    assert!(trainer.steps() > expected.2 + STEPS, "{}", trainer.steps());
}

#[test]
fn what_a_wrong_device_made_a_callback_do_is_undone() {
    let expected = undisturbed();
    let (train, held_out) = data();
    for (replicas, step, fault) in [(3, 6, "state:0"), (2, 9, "exchange")] {
        let scope = format!("callbacks-{step}:");
        let at = if fault == "exchange" { ":segment-1" } else { "" };
        for later in step..4 * expected.2 {
            fail::cfg(format!("{scope}replica-1:step-{later}{at}"), &format!("return({fault})")).unwrap();
        }
        let builder = steered(replicas).audits(Audits::Every(5)).digest_every(10).fault_scope(&scope);
        let notes = Notes::default();
        let mut trainer = build(builder.observer(notes.clone()));
        trainer.fit(&train, Some(&held_out), 60).unwrap();
        assert!(notes.has("goes back to step"), "{fault}");
        assert_eq!(result(&mut trainer), expected, "{fault}");
    }
}

#[test]
fn the_best_weights_are_restored_when_a_run_stops() {
    let (train, held_out) = data();
    let mut trainer = build(steered(2));
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    let losses: Vec<f64> = trainer.history().iter().map(|e| e.validation.as_ref().unwrap().loss).collect();
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best < *losses.last().unwrap());
    assert_eq!(trainer.evaluate(&held_out).unwrap().loss, best);
    assert!(trainer.stopped().unwrap().reason.contains("whose weights are restored"));
}

/// Where all epochs are done first the weights are those of the last one, and a note says so.
#[test]
fn the_best_weights_that_are_not_restored_are_noted() {
    let (train, held_out) = data();
    let mut told = Vec::new();
    for epochs in 1..=12 {
        let notes = Notes::default();
        let stopping = EarlyStopping::lowest("loss").patience(99).restore_best();
        let mut trainer = build(builder(1).callback(stopping).observer(notes.clone()));
        trainer.fit(&train, Some(&held_out), epochs).unwrap();
        let loss = |epoch: &Epoch| epoch.validation.as_ref().unwrap().loss;
        let losses: Vec<f64> = trainer.history().iter().map(loss).collect();
        let is_last = losses.iter().all(|loss| loss >= losses.last().unwrap());
        let text = "the weights are those of the last one: early stopping has kept better ones";
        assert_eq!(notes.has(text), !is_last, "{losses:?}");
        told.push(notes.has(text));
        if !is_last {
            assert!(trainer.restore_kept_weights().unwrap());
            let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
            assert_eq!(trainer.evaluate(&held_out).unwrap().loss, best);
        }
    }
    assert!(told.contains(&true) && told.contains(&false));
}

/// What one callback keeps is not what another restores.
#[test]
fn the_best_weights_are_restored_beside_a_callback_that_keeps_others() {
    let (train, held_out) = data();
    let stopping = || EarlyStopping::lowest("loss").patience(2).min_delta(0.02).restore_best();
    let mut alone = build(builder(1).callback(stopping()));
    alone.fit(&train, Some(&held_out), 60).unwrap();
    let keeps = on_step("keeps", Influence::None, |_, run| run.keep_weights());
    let mut trainer = build(builder(1).callback(stopping()).callback(keeps));
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    let stopped = trainer.stopped().unwrap().clone();
    assert_eq!(Some(&stopped), alone.stopped());
    let best = alone.tensor("0.weight").unwrap().unwrap();
    assert_eq!(trainer.tensor("0.weight").unwrap().unwrap(), best);
    // The newest are those of the last step.
    assert!(trainer.restore_kept_weights().unwrap());
    assert_ne!(trainer.tensor("0.weight").unwrap().unwrap(), best);
}

/// A callback that saves where a fit begins.
struct SavesFirst;

impl Callback for SavesFirst {
    fn name(&self) -> &str {
        "saves first"
    }

    fn influence(&self) -> Influence {
        Influence::None
    }

    fn fit_begins(&mut self, run: &mut Control<'_>) -> Result<(), Error> {
        run.save();
        Ok(())
    }
}

#[test]
fn a_save_at_the_beginning_is_that_of_the_step_before_the_fit() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(builder(2).callback(SavesFirst));
    trainer.checkpoints(dir.path(), 0).unwrap();
    let begun = trainer.state_sha256().unwrap();
    trainer.fit(&data().0, None, 2).unwrap();
    drop(trainer);
    let [(last, newest), (0, _)] = &list(dir.path()).unwrap()[..] else { panic!("two checkpoints") };
    assert_eq!(*last, 2 * STEPS);
    std::fs::remove_dir_all(newest).unwrap();
    let mut trainer = build(builder(1).callback(SavesFirst));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.resume().unwrap().unwrap();
    assert_eq!(trainer.state_sha256().unwrap(), begun);
}

/// Keeps the learning rate of each step.
fn rates(epochs: u32, callback: impl Callback + 'static) -> Vec<f64> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let before = Arc::clone(&seen);
    let see = on_step("sees", Influence::None, move |_, run| {
        // The next step's.
        before.lock().unwrap().push(run.learning_rate().unwrap());
        Ok(())
    });
    let mut trainer = build(builder(1).callback(see).callback(callback));
    trainer.fit(&data().0, None, epochs).unwrap();
    let rates = seen.lock().unwrap().clone();
    assert!(trainer.learning_rate().is_some());
    rates
}

#[test]
fn a_rate_holds_from_the_step_after_the_next_on_and_at_once_after_an_epoch() {
    let at_step = on_step("sets", Influence::NotCovered, |step, run| match step.step {
        2 => run.set_learning_rate(0.25),
        _ => Ok(()),
    });
    // The rate of steps 1, 2, ...
    assert_eq!(rates(2, at_step), [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]);
    let at_epoch = on_epoch("sets", Influence::NotCovered, |_, run| run.scale_learning_rate(0.5));
    assert_eq!(rates(3, at_epoch), [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125]);
}

#[test]
fn wishes_that_cannot_be_met_are_errors() {
    for (rate, text) in [(-0.1, "-0.1"), (f64::NAN, "NaN"), (1e300, "1000")] {
        let wrong = on_step("wrong", Influence::NotCovered, move |_, run| run.set_learning_rate(rate));
        let error = build(builder(1).callback(wrong)).fit(&data().0, None, 1).unwrap_err().to_string();
        assert!(
            error.contains("learning rate") && error.contains(text) && error.contains("wrong"),
            "{error}"
        );
    }
    let error = builder(1).optimizer(Sgd::new(-0.1)).build(&data().0.fields().unwrap()).err().unwrap();
    assert!(error.to_string().contains("is -0.1, and must be finite and not negative"), "{error}");
    let refused = |callback: EarlyStopping| {
        builder(1).callback(callback).build(&data().0.fields().unwrap()).err().unwrap().to_string()
    };
    let error = refused(EarlyStopping::lowest("f1"));
    assert!(error.contains("it watches \"f1\", but there is only loss accuracy"), "{error}");
    let two = builder(1).callback(EarlyStopping::lowest("loss")).callback(EarlyStopping::highest("accuracy"));
    let error = two.build(&data().0.fields().unwrap()).err().unwrap().to_string();
    assert!(error.contains("two callbacks have this name"), "{error}");
}

/// Resumes a run that Moody and early stopping have steered with other callbacks.
fn resumed_with(dir: &Path, builder: Builder) -> Result<(), String> {
    let mut trainer = build(builder);
    trainer.checkpoints(dir, 0).unwrap();
    trainer.resume().map(drop).map_err(|error| error.to_string())
}

#[test]
fn other_callbacks_are_another_run() {
    let (train, held_out) = data();
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(steered(1));
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.fit(&train, Some(&held_out), 2).unwrap();
    drop(trainer);
    let error = resumed_with(dir.path(), builder(1)).unwrap_err();
    assert!(
        error.contains("what callbacks decide of the run is moody (version 1), early stopping"),
        "{error}"
    );
    let other = EarlyStopping::lowest("loss").patience(4).restore_best();
    let error =
        resumed_with(dir.path(), builder(1).callback(Moody { sum: 0.0 }).callback(other)).unwrap_err();
    assert!(error.contains("patience 3") && error.contains("patience 4"), "{error}");
    // One that changes nothing may come and go.
    resumed_with(dir.path(), steered(1).callback(PauseAfter::time(Duration::ZERO))).unwrap();
}

#[test]
fn a_fit_that_has_nothing_to_do_and_one_that_was_stopped_before_say_so() {
    let (notes, stop) = (Notes::default(), Stop::new());
    let mut trainer = build(builder(1).observer(notes.clone()));
    trainer.stop_on(&stop);
    trainer.fit(&data().0, None, 2).unwrap();
    trainer.fit(&data().0, None, 2).unwrap();
    assert!(notes.has("nothing to do: 2 epochs are done and 2 are requested"));
    stop.ask();
    trainer.fit(&data().0, None, 3).unwrap();
    assert!(notes.has("was asked to stop before this fit"));
    assert_eq!(trainer.history().len(), 2);
    stop.reset();
    trainer.fit(&data().0, None, 3).unwrap();
    assert_eq!(trainer.history().len(), 3);
}

#[test]
fn a_time_that_is_over_pauses_after_a_step_and_the_next_fit_goes_on() {
    let (train, _) = data();
    let mut sound = build(builder(1));
    sound.fit(&train, None, 2).unwrap();
    let mut trainer = build(builder(1).callback(PauseAfter::time(Duration::from_nanos(1))));
    for _ in 0..100 {
        trainer.fit(&train, None, 2).unwrap();
    }
    assert_eq!(trainer.history(), sound.history());
    assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
}

/// A callback may save a run that is saved nowhere else.
#[test]
fn what_a_callback_asks_to_be_saved_is_saved() {
    for replicas in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let saves = on_step("saves", Influence::None, |step, run| {
            if step.step == 1 {
                run.save();
            }
            Ok(())
        });
        let mut trainer = build(builder(replicas).callback(saves));
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.fit(&data().0, None, 1).unwrap();
        let steps: Vec<u64> = list(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [STEPS, 2]);
    }
}

/// A stop in the middle of a callback's evaluation waits until all callbacks of the step were called: they
/// are not called again.
#[test]
fn a_stop_while_callbacks_are_called_loses_no_call() {
    let (train, held_out) = data();
    let stop = Stop::new();
    let asks = stop.clone();
    let held_out = held_out.try_map("stops", move |_, _| {
        asks.ask();
        Ok(())
    });
    let build = |stop: Option<&Stop>| {
        let looks = |evaluation: &unisono::Evaluation, run: &mut Control<'_>| {
            run.set_learning_rate(0.1 + evaluation.loss.fract() / 2.0)
        };
        let often = EvaluateEvery::steps(3, &held_out).then(Influence::By("1".into()), looks);
        let mut trainer = build(builder(1).callback(often).callback(Moody { sum: 0.0 }));
        stop.into_iter().for_each(|stop| trainer.stop_on(stop));
        trainer
    };
    let mut sound = build(None);
    sound.fit(&train, None, 4).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut stops = 0;
    loop {
        stop.reset();
        let mut trainer = build(Some(&stop));
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.resume().unwrap();
        trainer.fit(&train, None, 4).unwrap();
        if trainer.steps() == 4 * STEPS && trainer.history().len() == 4 {
            assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
            assert_eq!(trainer.history(), sound.history());
            break;
        }
        stops += 1;
        assert!(stops < 9, "the run does not end");
    }
    assert!(stops > 2);
}
