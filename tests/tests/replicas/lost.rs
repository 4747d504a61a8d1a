//! The loss of a replica is reported whenever it happens. If it was the last one, the error says what
//! checkpoints there are.

use std::sync::{Arc, Mutex};

use unisono::data::Loader;
use unisono::{Assignment, Observer, Trainer};
use unisono_tests::{loader, perceptron};

/// The number of samples for training: four steps in an epoch. Those held out take two steps of evaluation.
const TRAINED: usize = 50;
const HELD_OUT: usize = 20;

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

impl Notes {
    /// Returns the replicas that left, each with the step at which it left.
    fn left(&self) -> Vec<(u64, u64)> {
        let number = |text: &str| text.split([' ', ':']).next()?.parse().ok();
        let left = |note: &String| {
            let (who, step) = note.strip_prefix("replica ")?.split_once(" left at step ")?;
            Some((number(who)?, number(step)?))
        };
        self.0.lock().unwrap().iter().filter_map(left).collect()
    }
}

/// Returns a trainer that loses replicas.
fn trainer(scope: &str, replicas: usize, lost: &[&str]) -> (Trainer, Notes) {
    for point in lost {
        fail::cfg(format!("{scope}:{point}"), "return(lose)").unwrap();
    }
    let notes = Notes::default();
    let builder = perceptron(8)
        .global_batch(16)
        .replicas(replicas)
        .digest_every(0)
        .assignment(Assignment::Even)
        .observer(notes.clone());
    let fields = loader(TRAINED, 5).unwrap().fields().unwrap();
    (builder.fault_scope(&format!("{scope}:")).build(&fields).unwrap(), notes)
}

fn data() -> (Loader, Loader) {
    (loader(TRAINED, 5).unwrap(), loader(HELD_OUT, 6).unwrap())
}

#[test]
fn who_is_lost_while_nothing_is_trained_is_told() {
    let (train, held_out) = data();
    let lost = ["replica-1:step-4", "replica-2:step-10", "replica-3:step-12"];
    let (mut trainer, notes) = trainer("told", 5, &lost);
    trainer.fit(&train, Some(&held_out), 2).unwrap();
    assert_eq!(notes.left(), [(1, 4), (2, 10)]);
    trainer.predict(&held_out).unwrap();
    assert_eq!(notes.left()[2..], [(3, 12)]);
}

#[test]
fn who_is_lost_in_a_step_that_fails_is_told() {
    let (train, _) = data();
    let (mut trainer, notes) = trainer("failing", 3, &["replica-1:step-0"]);
    trainer.set_tensor("3.bias", &[f32::MAX, f32::MIN, f32::MAX]).unwrap();
    let error = trainer.fit(&train, None, 1).unwrap_err().to_string();
    assert!(error.starts_with("step 0: the loss of sample"), "{error}");
    assert_eq!(notes.left(), [(1, 0)]);
}

#[test]
fn the_last_ones_end_names_the_newest_checkpoint_wherever_it_was() {
    let (train, held_out) = data();
    let dir = tempfile::tempdir().unwrap();
    // The replica is lost in the evaluation after the first epoch, which comes before the save of step 4.
    let (mut trainer, notes) = trainer("evaluating", 1, &["replica-0:step-4"]);
    trainer.checkpoints(dir.path(), 2).unwrap();
    let hint = "; the newest checkpoint is that of step 2: resume from it";
    let error = trainer.fit(&train, Some(&held_out), 2).unwrap_err().to_string();
    assert!(error.starts_with("step 4: no replica is left") && error.ends_with(hint), "{error}");
    assert_eq!(notes.left(), [(0, 4)]);
    for error in [
        trainer.predict(&held_out).unwrap_err(),
        trainer.save().unwrap_err(),
        trainer.check_replicas().unwrap_err(),
        trainer.state_sha256().unwrap_err(),
    ] {
        assert!(error.to_string().ends_with(hint), "{error}");
    }
    drop(trainer);

    // The checkpoint that a run was resumed from counts too.
    let (mut trainer, _) = self::trainer("resumed", 1, &["replica-0:step-0"]);
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.resume().unwrap().unwrap();
    let error = trainer.fit(&train, None, 2).unwrap_err().to_string();
    assert!(error.ends_with(hint), "{error}");
    // It does not count if it was removed.
    trainer.clear_checkpoints().unwrap();
    let error = trainer.predict(&held_out).unwrap_err().to_string();
    assert!(error.ends_with("; there is no checkpoint to resume from"), "{error}");
}

#[test]
fn a_checkpoint_that_could_not_be_written_is_none_to_go_on_from() {
    let (train, _) = data();
    let dir = tempfile::tempdir().unwrap();
    let (mut trainer, _) = trainer("unwritten", 1, &["replica-0:step-5"]);
    trainer.checkpoints(dir.path(), 2).unwrap();
    let checkpoints = dir.path().join("checkpoints");
    std::fs::remove_dir(&checkpoints).unwrap();
    std::fs::write(&checkpoints, "in the way").unwrap();
    let error = trainer.fit(&train, None, 2).unwrap_err().to_string();
    assert!(error.ends_with("; there is no checkpoint to resume from"), "{error}");
}
