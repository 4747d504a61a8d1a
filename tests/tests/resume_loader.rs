//! A resumed run goes on with the order and the transforms that it had. Others would train on some samples
//! twice and on some never.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex};

use unisono::checkpoint::{Store, newest};
use unisono::data::Loader;
use unisono::{Observer, Step, Stop, Trainer};
use unisono_tests::{blobs, perceptron};

fn plain() -> Loader {
    Loader::new(blobs(20, 3).unwrap()).threads(1).shuffle(1)
}

fn jittered() -> Loader {
    plain().map("jitter", |sample, draws| {
        sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += draws.range(-0.1, 0.1));
    })
}

fn trainer(dir: &Path) -> Trainer {
    let builder = perceptron(4).global_batch(4).replicas(1).observer(First);
    let mut trainer = builder.build(&plain().fields().unwrap()).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer
}

fn resumed(dir: &Path) -> Trainer {
    let mut trainer = trainer(dir);
    trainer.resume().unwrap().unwrap();
    trainer
}

thread_local! {
    /// The stop of this test's run.
    static STOP: RefCell<Stop> = RefCell::default();
}

/// Asks the run to stop after each step.
struct First;

impl Observer for First {
    fn step(&mut self, _: &Step) {
        STOP.with_borrow(|stop| _ = stop.ask());
    }
}

/// Fits until the first step is done.
fn fit_one_step(mut trainer: Trainer, loader: &Loader, epochs: u32) {
    let stop = Stop::new();
    STOP.set(stop.clone());
    trainer.stop_on(&stop);
    trainer.fit(loader, None, epochs).unwrap();
    assert_eq!(trainer.position().sample, 4, "in the middle of an epoch");
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn another_loader_is_refused_by_name_and_the_same_goes_on() {
    let undisturbed = tempfile::tempdir().unwrap();
    let mut expected = trainer(undisturbed.path());
    expected.fit(&jittered(), None, 2).unwrap();
    let expected = expected.state_sha256().unwrap();

    let dir = tempfile::tempdir().unwrap();
    fit_one_step(trainer(dir.path()), &jittered(), 2);
    let mut second = resumed(dir.path());
    for (other, problem) in [
        (jittered().shuffle(2), "seed: 1, not 2"),
        (jittered().shuffle_window(1, 8), "order: shuffled, not shuffled in windows of 8"),
        (jittered().drop_last(true), "drop_last: false, not true"),
        (plain(), "transforms: map 'jitter', not none"),
        (plain().shuffle(2), "seed: 1, not 2; transforms: map 'jitter', not none"),
    ] {
        let error = second.fit(&other, None, 2).unwrap_err().to_string();
        assert_eq!(error, format!("data: the loader is not that of the run: {problem}"));
    }
    second.fit(&jittered().threads(3), None, 2).unwrap();
    assert_eq!(second.state_sha256().unwrap(), expected);
}

#[test]
fn another_loader_can_be_forced_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fit_one_step(trainer(dir.path()), &jittered(), 1);
    let notes = Notes::default();
    let builder = perceptron(4).global_batch(4).replicas(1).observer(notes.clone());
    let mut forced = builder.build(&plain().fields().unwrap()).unwrap();
    forced.checkpoints(dir.path(), 0).unwrap();
    forced.force_resume().unwrap().unwrap();
    forced.fit(&plain(), None, 1).unwrap();
    let notes = notes.0.lock().unwrap();
    let expected = "warning: the loader is not that of the run: transforms: map 'jitter', not none";
    assert!(notes.iter().any(|note| note == expected), "{notes:?}");
}

#[test]
fn a_checkpoint_that_does_not_name_its_loader_is_compared_by_its_source() {
    let dir = tempfile::tempdir().unwrap();
    fit_one_step(trainer(dir.path()), &jittered(), 1);
    let mut old = newest(dir.path()).unwrap().unwrap().contents;
    let removed = old.trainer["sections"]["loader"]["value"].take();
    assert_eq!(removed["transforms"], "map 'jitter'");
    Store::open(dir.path()).unwrap().save(1, &old).unwrap();
    let other_source = Loader::new(blobs(20, 4).unwrap()).shuffle(1);
    let error = resumed(dir.path()).fit(&other_source, None, 1).unwrap_err().to_string();
    assert!(error.starts_with("data: the run was on data with fingerprint "), "{error}");
    resumed(dir.path()).fit(&plain(), None, 1).unwrap();
}

#[test]
fn later_epochs_may_have_another_loader_and_resume_where_they_were() {
    let phases = |mut trainer: Trainer| {
        trainer.fit(&jittered(), None, 1).unwrap();
        trainer.fit(&plain(), None, 2).unwrap();
        trainer.state_sha256().unwrap()
    };
    let undisturbed = tempfile::tempdir().unwrap();
    let expected = phases(trainer(undisturbed.path()));

    let between = tempfile::tempdir().unwrap();
    trainer(between.path()).fit(&jittered(), None, 1).unwrap();
    // A trainer that gets another loader right after the resume might mean to go on with the same run.
    let error = resumed(between.path()).fit(&plain(), None, 2).unwrap_err().to_string();
    assert!(error.contains("transforms: map 'jitter', not none"), "{error}");
    assert_eq!(phases(resumed(between.path())), expected);

    let within = tempfile::tempdir().unwrap();
    let mut first = trainer(within.path());
    first.fit(&jittered(), None, 1).unwrap();
    fit_one_step(first, &plain(), 2);
    assert_eq!(phases(resumed(within.path())), expected);
}
