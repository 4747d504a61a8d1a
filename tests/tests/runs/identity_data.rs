//! What a run's identity says of its data: where they are slow or hard to read, change between fits, or are
//! not hashed at all.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use unisono::checkpoint::list;
use unisono::data::{ContentHash, Coverage, DataError, FieldSpec, Loader, Memory, Sample, Source};
use unisono::{BestBy, Dense, Error, Observer, SavedRun, Saving, Sequential, Sgd, Step, Stop, Trainer};

/// Samples of which the quick fingerprint says nothing.
#[derive(Clone)]
struct Guarded {
    samples: Memory,
    coverage: Coverage,
    gate: Arc<Gate>,
}

/// What keeps the samples from being hashed.
#[derive(Default)]
struct Gate {
    shut: AtomicBool,
    /// How many times reading fails.
    failures: AtomicU32,
}

impl Source for Guarded {
    fn len(&self) -> u64 {
        self.samples.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.samples.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.samples.fetch(index)
    }
    fn fingerprint(&self) -> u64 {
        7
    }
    fn coverage(&self) -> Coverage {
        self.coverage.clone()
    }
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        while self.gate.shut.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5));
        }
        let fails = |left: u32| left.checked_sub(1);
        if self.gate.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(DataError::Io { path: "disk".into(), cause: io::Error::other("not just now") });
        }
        self.samples.hash_content(samples, hash)
    }
}

impl Guarded {
    fn new(samples: usize, value: f32, coverage: Coverage) -> Self {
        let x: Vec<f32> = (0..samples * 3).map(|i| (i % 7) as f32 * value).collect();
        let y: Vec<i32> = (0..samples).map(|i| (i % 2) as i32).collect();
        Self { samples: Memory::labelled(x, [3], y).unwrap(), coverage, gate: Arc::default() }
    }

    fn loader(&self) -> Loader {
        Loader::new(self.clone()).threads(1)
    }
}

fn hashed(value: f32) -> Guarded {
    Guarded::new(16, value, Coverage::Hashed)
}

/// Keeps the notes of a run and the names of its checkpoints, and may ask it to stop after a step.
#[derive(Clone, Default)]
struct Notes {
    notes: Arc<Mutex<Vec<String>>>,
    saved: Arc<Mutex<Vec<String>>>,
    stop: Option<Stop>,
    /// A gate that is opened when so many steps are done.
    opens: Option<(u64, Arc<Gate>)>,
    /// Whether it was shut until then.
    was_shut: Arc<AtomicBool>,
}

impl Notes {
    fn with(&self, text: &str) -> usize {
        self.notes.lock().unwrap().iter().filter(|note| note.contains(text)).count()
    }
}

impl Observer for Notes {
    fn step(&mut self, step: &Step) {
        if let Some(stop) = &self.stop {
            stop.ask();
        }
        if let Some((_, gate)) = self.opens.as_ref().filter(|(after, _)| *after == step.step + 1) {
            self.was_shut.store(gate.shut.swap(false, Ordering::SeqCst), Ordering::SeqCst);
        }
    }
    fn saved(&mut self, path: &Path) {
        self.saved.lock().unwrap().push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    fn note(&mut self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
}

/// Two steps make an epoch of 16 samples.
fn build(lr: f64, dir: Option<&Path>, notes: &Notes) -> Trainer {
    let builder = Trainer::builder(Sequential::new().add(Dense::new(2))).optimizer(Sgd::new(lr));
    let builder = builder.global_batch(8).shards(2).replicas(1).observer(notes.clone());
    let mut trainer = builder.build(Guarded::new(1, 1.0, Coverage::Hashed).fields()).unwrap();
    dir.iter().for_each(|dir| trainer.checkpoints(dir, 1).unwrap());
    trainer
}

/// Does the first epoch of a run that is saved.
fn first_epoch(dir: &Path, data: &Guarded) {
    build(0.1, Some(dir), &Notes::default()).fit(&data.loader(), None, 1).unwrap();
}

fn resumed(dir: &Path, notes: &Notes) -> Trainer {
    let mut trainer = build(0.1, Some(dir), notes);
    assert_eq!(trainer.resume().unwrap().unwrap().step, 2);
    trainer
}

fn steps(dir: &Path) -> Vec<u64> {
    let mut steps: Vec<u64> = list(dir).unwrap().into_iter().map(|(step, _)| step).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_resumed_run_trains_on_while_its_data_are_hashed_and_is_saved_then() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    first_epoch(dir.path(), &data);
    data.gate.shut.store(true, Ordering::SeqCst);
    let gate = data.gate.clone();
    spawn(move || {
        // Without this a trainer that waits would wait for ever.
        sleep(Duration::from_secs(120));
        gate.shut.store(false, Ordering::SeqCst);
    });
    let notes = Notes { opens: Some((7, data.gate.clone())), ..Notes::default() };
    let mut trainer = resumed(dir.path(), &notes);
    trainer.fit(&data.loader(), None, 20).unwrap();
    assert!(notes.was_shut.load(Ordering::SeqCst), "steps wait for the hash");
    let saved = notes.saved.lock().unwrap();
    assert!(saved.iter().all(|name| **name >= *"step-00000007"), "{saved:?}");
    assert_eq!((trainer.saved_step(), steps(dir.path()).last()), (Some(40), Some(&40)));
    assert_eq!(notes.with("the steps after step 2 are saved once the data are hashed"), 1);
}

/// The checkpoint of an epoch that may be the best is not one that a later step can stand for.
#[test]
fn a_resumed_run_waits_with_an_epoch_that_may_be_the_best() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    first_epoch(dir.path(), &data);
    data.gate.shut.store(true, Ordering::SeqCst);
    let notes = Notes::default();
    let mut trainer = build(0.1, None, &notes);
    let saving = Saving::new(dir.path()).every(1).keep_last(100).keep_best(BestBy::Lowest("loss".into()));
    trainer.save_to(saving).unwrap();
    assert_eq!(trainer.resume().unwrap().unwrap().step, 2);
    let (gate, told) = (data.gate.clone(), notes.clone());
    let opened = spawn(move || {
        while told.with("waiting until the data are hashed") == 0 {
            sleep(Duration::from_millis(20));
        }
        gate.shut.store(false, Ordering::SeqCst);
    });
    trainer.fit(&data.loader(), None, 3).unwrap();
    opened.join().unwrap();
    let steps = steps(dir.path());
    assert!(steps.contains(&4) && !steps.contains(&3), "{steps:?}");
}

#[test]
fn a_stop_ends_a_resumed_run_whose_data_are_not_hashed() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    first_epoch(dir.path(), &data);
    data.gate.shut.store(true, Ordering::SeqCst);
    let (notes, stop) = (Notes::default(), Stop::new());
    let mut trainer = resumed(dir.path(), &notes);
    trainer.stop_on(&stop);
    let gate = data.gate.clone();
    let told = notes.clone();
    spawn(move || {
        while told.with("waiting until the data are hashed") == 0 {
            sleep(Duration::from_millis(20));
        }
        stop.ask();
        // Without this a trainer that waits would wait for ever.
        sleep(Duration::from_secs(120));
        gate.shut.store(false, Ordering::SeqCst);
    });
    trainer.fit(&data.loader(), None, 3).unwrap();
    assert!(data.gate.shut.load(Ordering::SeqCst), "it has waited for the hash");
    // A slow disk may have left step 1 out.
    assert_eq!((trainer.steps(), steps(dir.path()).last()), (6, Some(&2)));
    assert_eq!(trainer.saved_step(), Some(2));
    assert!(matches!(trainer.save(), Err(Error::Stopped)));
    assert_eq!(notes.with("the steps after step 2 are not saved: it is not yet known whether"), 1);
    assert_eq!(notes.with("waiting until the data are hashed"), 1);
}

#[test]
fn the_last_checkpoint_has_the_identity_that_the_fit_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    data.gate.shut.store(true, Ordering::SeqCst);
    let mut trainer = build(0.1, Some(dir.path()), &Notes::default());
    let (gate, path) = (data.gate.clone(), dir.path().to_owned());
    let opened = spawn(move || {
        while !list(&path).is_ok_and(|all| all.iter().any(|(step, _)| *step == 2)) {
            sleep(Duration::from_millis(20));
        }
        gate.shut.store(false, Ordering::SeqCst);
    });
    trainer.fit(&data.loader(), None, 1).unwrap();
    opened.join().unwrap();
    let identity = trainer.identity().sha256;
    assert!(identity.is_some());
    let saved = SavedRun::newest(dir.path()).unwrap().unwrap();
    assert_eq!((saved.steps(), saved.identity()), (2, identity.as_deref()));
}

#[test]
fn data_that_cannot_be_read_are_hashed_again_and_the_steps_are_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    first_epoch(dir.path(), &data);
    let notes = Notes::default();
    let mut trainer = resumed(dir.path(), &notes);
    data.gate.failures.store(1, Ordering::SeqCst);
    trainer.fit(&data.loader(), None, 2).unwrap();
    assert_eq!(notes.with("the data are hashed once more: "), 1);
    assert_eq!(steps(dir.path()).last(), Some(&4));
    drop(trainer);

    let mut trainer = build(0.1, Some(dir.path()), &notes);
    trainer.resume().unwrap().unwrap();
    data.gate.failures.store(3, Ordering::SeqCst);
    let loader = data.loader();
    let error = trainer.fit(&loader, None, 3).unwrap_err().to_string();
    assert!(error.contains("disk: not just now"), "{error}");
    assert!(trainer.steps() > 4 && steps(dir.path()).last() == Some(&4), "nothing is saved unseen");
    trainer.fit(&loader, None, 3).unwrap();
    assert_eq!(steps(dir.path()).last(), Some(&6));
    assert!(trainer.identity().not_covered.is_empty(), "{:?}", trainer.identity());
}

#[test]
fn data_of_one_run_are_compared_anew_with_those_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let (data, other) = (hashed(0.1), hashed(0.2));
    first_epoch(&ours, &data);
    first_epoch(&theirs, &other);
    let mut trainer = resumed(&ours, &Notes::default());
    let loader = data.loader();
    trainer.fit(&loader, None, 2).unwrap();
    trainer.checkpoints(&theirs, 1).unwrap();
    trainer.resume().unwrap().unwrap();
    let error = trainer.fit(&loader, None, 3).unwrap_err().to_string();
    assert!(error.contains("the data are not those of the run"), "{error}");
    // A slow disk may have left step 1 out.
    assert_eq!(steps(&theirs).last(), Some(&2));
    // The steps on the wrong data are not saved with those on the right ones. There may be as many as the fit
    // was to make, if the hash came at its end.
    let error = trainer.fit(&other.loader(), None, 4).unwrap_err().to_string();
    assert!(error.contains("were done on other data: ") && error.ends_with("resume the run"), "{error}");
    trainer.resume().unwrap().unwrap();
    trainer.fit(&other.loader(), None, 3).unwrap();
    assert_eq!(steps(&theirs).last(), Some(&6));
}

#[test]
fn steps_on_data_whose_hash_never_came_are_told() {
    let stop = Stop::new();
    let mut trainer = build(0.1, None, &Notes { stop: Some(stop.clone()), ..Notes::default() });
    trainer.stop_on(&stop);
    let slow = hashed(0.1);
    slow.gate.shut.store(true, Ordering::SeqCst);
    trainer.fit(&slow.loader(), None, 1).unwrap();
    assert_eq!(trainer.steps(), 1);
    trainer.stop_on(&Stop::new());
    trainer.fit(&hashed(0.1).loader(), None, 2).unwrap();
    assert_eq!(trainer.identity().not_covered, ["the data of steps 0 to 0"]);
    slow.gate.shut.store(false, Ordering::SeqCst);
}

#[test]
fn tensors_that_were_set_and_batches_of_ones_own_loop_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    let fitted = |set: Option<f32>, dir: Option<&Path>| {
        let mut trainer = build(0.1, dir, &Notes::default());
        set.iter().for_each(|&value| trainer.set_tensor("0.bias", &[value; 2]).unwrap());
        trainer.fit(&data.loader(), None, 1).unwrap();
        trainer.identity().sha256.unwrap()
    };
    let plain = fitted(None, None);
    let set = fitted(Some(0.5), Some(dir.path()));
    assert!(set != plain && fitted(Some(0.25), None) != set && fitted(Some(0.5), None) == set);
    let mut trainer = resumed(dir.path(), &Notes::default());
    trainer.fit(&data.loader(), None, 2).unwrap();
    assert_eq!(trainer.identity().sha256.unwrap(), set);

    for batch in data.loader().batch(8).epochs_from(trainer.position()).unwrap().take(2) {
        trainer.step(&batch.unwrap()).unwrap();
    }
    trainer.save().unwrap();
    let expected = ["the batches of one's own loop"];
    assert_eq!(trainer.identity().not_covered, expected);
    drop(trainer);
    let mut trainer = build(0.1, Some(dir.path()), &Notes::default());
    trainer.resume().unwrap().unwrap();
    trainer.fit(&data.loader(), None, 4).unwrap();
    assert_eq!(trainer.identity().not_covered, expected);
}

#[test]
fn what_was_not_covered_in_one_fit_is_told_after_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = build(0.1, Some(dir.path()), &Notes::default());
    let open = Guarded::new(16, 0.1, Coverage::Unknown);
    trainer.fit(&open.loader().map("noise", |_, _| ()), None, 1).unwrap();
    assert_eq!(trainer.identity().not_covered, ["the code of map 'noise'", "the content of the data"]);
    let covered = hashed(0.1);
    let versioned = covered.loader().map("noise", |_, _| ()).version("1");
    trainer.fit(&versioned, None, 2).unwrap();
    let expected = ["the code of map 'noise'", "the data of the first 2 steps"];
    let identity = trainer.identity();
    assert_eq!(identity.not_covered, expected);
    assert_eq!(identity.ancestors[0].differs, ["the content of the data was not covered"]);
    drop(trainer);
    let mut trainer = build(0.1, Some(dir.path()), &Notes::default());
    trainer.resume().unwrap().unwrap();
    trainer.fit(&versioned, None, 3).unwrap();
    assert_eq!(trainer.identity(), identity);
}

#[test]
fn a_name_does_not_stand_for_other_samples_or_fields() {
    let dir = tempfile::tempdir().unwrap();
    let named = |samples| Guarded::new(samples, 0.1, Coverage::Named("waves 1".into()));
    first_epoch(dir.path(), &named(16));
    let error = resumed(dir.path(), &Notes::default()).fit(&named(24).loader(), None, 2).unwrap_err();
    assert!(error.to_string().contains("the run was on 16 samples, not 24"), "{error}");
    resumed(dir.path(), &Notes::default()).fit(&named(16).loader(), None, 2).unwrap();
}

#[test]
fn an_ancestor_of_unknown_identity_is_known_by_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let data = hashed(0.1);
    data.gate.shut.store(true, Ordering::SeqCst);
    let stop = Stop::new();
    let mut trainer = build(0.1, Some(dir.path()), &Notes { stop: Some(stop.clone()), ..Notes::default() });
    trainer.stop_on(&stop);
    trainer.fit(&data.loader(), None, 1).unwrap();
    let state = trainer.state_sha256().unwrap();
    drop(trainer);
    assert_eq!(SavedRun::newest(dir.path()).unwrap().unwrap().identity(), None);
    data.gate.shut.store(false, Ordering::SeqCst);
    let mut forced = build(0.2, Some(dir.path()), &Notes::default());
    forced.force_resume().unwrap().unwrap();
    forced.fit(&data.loader(), None, 1).unwrap();
    let ancestor = &forced.identity().ancestors[0];
    assert_eq!((&ancestor.identity, ancestor.step), (&None, 1));
    assert_eq!(ancestor.state_sha256.as_deref(), Some(&*state));
}
