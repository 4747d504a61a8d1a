//! Drills: a device computes wrongly at some step. A run ends in the bytes of an undisturbed one, or says
//! that it is refused.

mod checkpoints;
mod leaving;
mod replay;
mod stops;
mod witness;
mod witness_drills;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use unisono::checkpoint::list;
use unisono::data::Loader;
use unisono::{Assignment, Audits, Error, Observer, Precision, Trainer};
use unisono_random::Draws;
use unisono_tests::{loader, perceptron};

const SAMPLES: usize = 50;
const EPOCHS: u32 = 6;
/// The steps of a run: four in an epoch.
const STEPS: u64 = 4 * EPOCHS as u64;
/// The mean number of steps between audits.
const EVERY: u64 = 5;

#[derive(Clone, Default)]
struct Watching(Arc<Mutex<Vec<u64>>>);

impl Observer for Watching {
    fn rolled_back(&mut self, step: u64) {
        self.0.lock().unwrap().push(step);
    }
}

/// Keeps what a run says, and what it has saved.
#[derive(Clone, Default)]
struct Hears {
    notes: Arc<Mutex<Vec<String>>>,
    saved: Arc<Mutex<Vec<PathBuf>>>,
}

impl Observer for Hears {
    fn note(&mut self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }

    fn saved(&mut self, path: &Path) {
        self.saved.lock().unwrap().push(path.to_owned());
    }
}

/// A fault of one replica of several.
#[derive(Clone, Debug)]
struct Drill {
    replicas: usize,
    /// The point after the replica's name, and the action.
    points: Vec<(String, String)>,
    wrong: usize,
}

impl Drill {
    /// Returns a fault that occurs once, at a step.
    fn once(replicas: usize, wrong: usize, step: u64, fault: &str) -> Self {
        // Sums are given back for the last segment.
        let at = if fault == "exchange" { ":segment-1" } else { "" };
        Self { replicas, points: vec![(format!(":step-{step}{at}"), format!("1*return({fault})"))], wrong }
    }

    /// Returns a fault that occurs in every step from one on. (Steps that are made again have numbers of
    /// their own.)
    fn from(replicas: usize, wrong: usize, step: u64, fault: &str) -> Self {
        let at = if fault == "exchange" { ":segment-1" } else { "" };
        let points = (step..4 * STEPS).map(|step| (format!(":step-{step}{at}"), format!("return({fault})")));
        Self { replicas, points: points.collect(), wrong }
    }

    fn scope(&self) -> String {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let scope = format!("trust-{}:", RUNS.fetch_add(1, Ordering::Relaxed));
        for (point, action) in &self.points {
            fail::cfg(format!("{scope}replica-{}{point}", self.wrong), action).unwrap();
        }
        scope
    }

    fn trainer(&self, audits: Audits) -> (Trainer, Watching) {
        self.assigned(Assignment::default(), audits)
    }

    fn assigned(&self, assignment: Assignment, audits: Audits) -> (Trainer, Watching) {
        let watching = Watching::default();
        let builder = perceptron(8).global_batch(16).replicas(self.replicas).audits(audits);
        let builder = builder.digest_every(10).fault_scope(&self.scope()).observer(watching.clone());
        (builder.assignment(assignment).build(&data().fields().unwrap()).unwrap(), watching)
    }
}

fn data() -> Loader {
    loader(SAMPLES, 5).unwrap()
}

fn undisturbed() -> String {
    let sound = Drill { replicas: 1, points: vec![], wrong: 0 };
    let mut trainer = sound.trainer(Audits::Never).0;
    trainer.fit(&data(), None, EPOCHS).unwrap();
    trainer.state_sha256().unwrap()
}

/// Runs a drill. Returns the steps to which the run went back, or that it was refused.
fn run(drill: &Drill, expected: &str, dir: Option<&Path>) -> Result<Vec<u64>, Error> {
    let (mut trainer, watching) = drill.trainer(Audits::Every(EVERY));
    if let Some(dir) = dir {
        trainer.checkpoints(dir, 3).unwrap();
    }
    trainer.fit(&data(), None, EPOCHS)?;
    assert_eq!(trainer.state_sha256().unwrap(), expected, "{drill:?}");
    assert_eq!((trainer.steps(), trainer.history().len()), (STEPS, EPOCHS as usize));
    let back = watching.0.lock().unwrap().clone();
    Ok(back)
}

#[test]
fn a_device_that_is_wrong_from_a_step_on_is_found_left_out_and_what_it_did_is_undone() {
    let expected = undisturbed();
    for (replicas, wrong, step, fault) in [
        (2, 1, 0, "gradient"),
        (2, 0, 7, "gradient"),
        // In the last step there are two shards for three replicas.
        (3, 2, STEPS - 2, "gradient"),
        (2, 1, 13, "exchange"),
        (3, 0, 4, "exchange"),
        (3, 1, 9, "state:0"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let drill = Drill::from(replicas, wrong, step, fault);
        let back = run(&drill, &expected, Some(dir.path())).unwrap();
        assert_eq!(back.len(), 1, "{drill:?}");
        // Not further than to the last audit before the fault.
        assert!(back[0] + 2 * EVERY > step, "{drill:?}: {back:?}");
    }
}

/// An audit compares blocks of the same shards, so shards must be cut the same way when a step is made again.
#[test]
fn an_audit_finds_a_wrong_gradient_however_shards_are_given_out() {
    let expected = undisturbed();
    for seed in 0..3 {
        let drill = Drill::from(2, 1, 0, "gradient");
        let builder = perceptron(8).global_batch(16).replicas(2).audits(Audits::Every(1));
        let builder = builder.assignment(Assignment::Shuffled(seed)).fault_scope(&drill.scope());
        let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
        let batch = data().batch(16).epoch(0).unwrap().next().unwrap().unwrap();
        let error = trainer.step(&batch).unwrap_err();
        assert!(matches!(error, Error::RolledBack { step: 0, .. }), "{seed}: {error}");
        trainer.fit(&data(), None, EPOCHS).unwrap();
        assert_eq!(trainer.state_sha256().unwrap(), expected);
    }
}

/// Calls 4 and 5 of an epoch of four steps are those of its evaluation.
#[test]
fn a_state_that_changes_while_a_model_is_evaluated_is_found_before_the_result_leaves() {
    let held_out = loader(20, 6).unwrap();
    let mut sound = Drill { replicas: 1, points: vec![], wrong: 0 }.trainer(Audits::Never).0;
    sound.fit(&data(), Some(&held_out), 1).unwrap();
    // Each replica has shards in each call, however fast it is: one without any would not go wrong.
    let wrong_in = |call| Drill::once(2, 1, call, "state:0").assigned(Assignment::Even, Audits::Every(1000));
    for call in [4, 5] {
        let (mut trainer, watching) = wrong_in(call);
        trainer.fit(&data(), Some(&held_out), 1).unwrap();
        assert_eq!(trainer.history(), sound.history(), "call {call}");
        assert_eq!(*watching.0.lock().unwrap(), [3], "the last step of a fit is audited");
    }
    let (mut trainer, _) = wrong_in(5);
    trainer.fit(&data(), None, 1).unwrap();
    let expected = trainer.predict(&held_out);
    assert!(matches!(expected, Err(Error::RolledBack { .. })), "{expected:?}");
}

/// A device that is wrong while it evaluates, and not while it trains, would decide which checkpoint is the
/// best.
#[test]
fn the_first_batch_of_an_evaluation_in_a_fit_is_audited() {
    let held_out = loader(20, 6).unwrap();
    let mut sound = Drill { replicas: 1, points: vec![], wrong: 0 }.trainer(Audits::Never).0;
    sound.fit(&data(), Some(&held_out), 1).unwrap();
    let drill = Drill::once(2, 1, 4, "not-finite");
    let (mut trainer, watching) = drill.trainer(Audits::Every(1000));
    trainer.fit(&data(), Some(&held_out), 1).unwrap();
    assert_eq!(trainer.history(), sound.history());
    assert_eq!(*watching.0.lock().unwrap(), [3], "the last step of a fit is audited");
}

/// A device that makes NaN of numbers is no reason to end a run, nor to lower a loss scale.
#[test]
fn numbers_that_are_not_finite_are_computed_again_before_they_are_believed() {
    let run = |drill: &Drill, precision| {
        let watching = Watching::default();
        let builder = perceptron(8).precision(precision).global_batch(16).replicas(drill.replicas);
        // Every replica has shards.
        let builder = builder.assignment(Assignment::Even).fault_scope(&drill.scope());
        let builder = builder.audits(Audits::Every(1000)).observer(watching.clone());
        let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
        trainer.fit(&data(), None, 2).unwrap();
        let left: Vec<usize> =
            trainer.reports().iter().filter(|report| report.left.is_some()).map(|r| r.replica).collect();
        let back = watching.0.lock().unwrap().clone();
        (trainer.state_sha256().unwrap(), back, left)
    };
    let sound = Drill { replicas: 1, points: vec![], wrong: 0 };
    let [expected, mixed] = [Precision::F32, Precision::Mixed].map(|precision| run(&sound, precision).0);
    for (replicas, wrong) in [(1, 0), (3, 2)] {
        let drill = Drill::once(replicas, wrong, 5, "not-finite");
        assert_eq!(run(&drill, Precision::F32), (expected.clone(), vec![0], vec![]), "{replicas} replicas");
    }
    let once = Drill::once(2, 1, 5, "not-finite");
    assert_eq!(run(&once, Precision::Mixed), (mixed, vec![0], vec![]));
    assert_eq!(
        run(&Drill::from(3, 1, 5, "not-finite"), Precision::F32),
        (expected.clone(), vec![0], vec![1])
    );
    // The last step is audited: here it is not finite when it is made again.
    let again = vec![(":step-7".to_owned(), "1*off->1*return(not-finite)->off".to_owned())];
    let again = Drill { replicas: 2, points: again, wrong: 1 };
    assert_eq!(run(&again, Precision::F32), (expected, vec![0], vec![]));
}

#[test]
fn a_fault_that_occurs_once_in_a_state_or_in_an_exchange_is_undone() {
    let expected = undisturbed();
    for (replicas, wrong, step, fault) in
        [(2, 1, 3, "state:0"), (2, 0, STEPS - 1, "state:1"), (3, 1, 8, "state:2"), (2, 1, 11, "exchange")]
    {
        let drill = Drill::once(replicas, wrong, step, fault);
        assert!(!run(&drill, &expected, None).unwrap().is_empty(), "{drill:?}");
    }
}

#[test]
fn a_run_goes_back_if_replicas_differ_when_another_joins() {
    let (mut trainer, watching) = Drill::once(3, 2, 1, "state:0").trainer(Audits::Every(1000));
    for batch in data().batch(16).epoch(0).unwrap().take(2) {
        trainer.step(&batch.unwrap()).unwrap();
    }
    let error = trainer.join("").unwrap_err();
    assert!(matches!(error, Error::RolledBack { step: 0, .. }), "{error}");
    assert_eq!((trainer.steps(), &*watching.0.lock().unwrap()), (0, &vec![0]));
    trainer.join("").unwrap();
    trainer.fit(&data(), None, EPOCHS).unwrap();
    assert_eq!(trainer.state_sha256().unwrap(), undisturbed());
}

/// Draws a fault of a state, of an exchange, or of all gradients from a step on.
fn drawn(draws: &mut Draws) -> Drill {
    let mut below = |n: u32| draws.below(n) as usize;
    let replicas = 2 + below(2);
    let (wrong, step, fault) = (below(replicas as u32), below(STEPS as u32) as u64, below(4));
    match fault {
        0 => Drill::once(replicas, wrong, step, &format!("state:{}", below(12))),
        1 => Drill::once(replicas, wrong, step, "exchange"),
        2 => Drill::from(replicas, wrong, step, "exchange"),
        _ => Drill::from(replicas, wrong, step, "gradient"),
    }
}

#[test]
fn random_drills_end_in_the_right_bytes() {
    let drills = if std::env::var_os("UNISONO_LONG").is_some() { 1000 } else { 10 };
    let expected = undisturbed();
    let mut found = 0;
    for drill in 0..drills {
        let drill = drawn(&mut Draws::of(drill, "test", "drills", 0, 0));
        // All of these can be undone; a refusal would be right too, and is not needed here.
        found += usize::from(!run(&drill, &expected, None).unwrap().is_empty());
    }
    // The last bit of a sum may be lost where it is added to others, and a state may flip before it is
    // replaced.
    assert!(2 * found > drills as usize, "{found} of {drills} were found");
}

/// A gradient that is wrong once is found if that step is audited.
#[test]
fn single_wrong_gradients_are_found_as_often_as_steps_are_audited() {
    let drills = if std::env::var_os("UNISONO_LONG").is_some() { 400 } else { 12 };
    let expected = undisturbed();
    let mut found = 0;
    for drill in 0..drills {
        let mut draws = Draws::of(drill, "test", "single", 0, 0);
        let step = u64::from(draws.below(STEPS as u32 - 1));
        let (mut trainer, watching) = Drill::once(2, 1, step, "gradient").trainer(Audits::Every(EVERY));
        trainer.fit(&data(), None, EPOCHS).unwrap();
        let was_found = !watching.0.lock().unwrap().is_empty();
        // What was found was undone. What was not found need not have changed the state: the last bit of a
        // sum is mostly lost where it is added to others.
        assert!(!was_found || trainer.state_sha256().unwrap() == expected, "step {step}");
        found += u32::from(was_found);
    }
    assert!(found > 0, "which steps are audited does not depend on chance");
    let chance = 1.0 / EVERY as f64;
    let error = (chance * (1.0 - chance) / drills as f64).sqrt();
    let share = f64::from(found) / drills as f64;
    assert!(
        (share - chance).abs() < 4.0 * error,
        "found {found} of {drills}: {share}, not {chance} +- {error}"
    );
}

/// Ends the fit that has done six steps of the run.
fn pause_after_six() -> impl unisono::Callback {
    unisono::on_step("pauses", unisono::Influence::None, |step, run| {
        if step.step == 5 {
            run.pause("six steps are done");
        }
        Ok(())
    })
}

/// A run that is paused before its first audit is audited there: what was saved then is trusted, and stays
/// when a later fit finds that a device is wrong.
#[test]
fn what_the_audit_at_a_stop_has_confirmed_is_not_set_aside() {
    let expected = undisturbed();
    let dir = tempfile::tempdir().unwrap();
    let drill = Drill::once(2, 1, 11, "state:0");
    let builder = perceptron(8).global_batch(16).replicas(2).audits(Audits::Every(1000)).digest_every(3);
    let builder = builder.fault_scope(&drill.scope()).callback(pause_after_six());
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    trainer.checkpoints(dir.path(), 0).unwrap();
    trainer.fit(&data(), None, EPOCHS).unwrap();
    assert_eq!(trainer.steps(), 6);
    let steps = || -> Vec<u64> { list(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect() };
    assert_eq!(steps(), [6]);
    let mut errors = 0;
    while trainer.steps() < STEPS {
        match trainer.fit(&data(), None, EPOCHS) {
            Ok(_) => {}
            Err(Error::RolledBack { step, .. }) => {
                errors += 1;
                assert_eq!((step, steps()), (6, vec![6]));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(errors <= 1);
    assert_eq!(trainer.state_sha256().unwrap(), expected);
}

/// A device, even a single one, that changes its state in the step which is made for the audit at a stop is
/// found: not only losses are compared.
#[test]
fn the_audit_at_a_stop_looks_at_the_state_that_a_step_makes() {
    for replicas in [1, 2] {
        // The steps of the fit are 0 to 5.
        let drill = Drill::once(replicas, 0, 6, "state:0");
        let watching = Watching::default();
        let builder = perceptron(8).global_batch(16).replicas(replicas).audits(Audits::Every(1000));
        let builder = builder.fault_scope(&drill.scope()).callback(pause_after_six());
        let mut trainer = builder.observer(watching.clone()).build(&data().fields().unwrap()).unwrap();
        trainer.fit(&data(), None, EPOCHS).unwrap();
        assert_eq!((watching.0.lock().unwrap().as_slice(), trainer.steps()), (&[0][..], 6));
    }
}
