//! A resumed run goes on with the order and the transforms that it had. Others would train on some samples
//! twice and on some never.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use unisono::checkpoint::{Store, newest};
use unisono::data::{Field, Loader, Sample, Source, TarShards};
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
    // Also where the run is saved somewhere else from then on.
    let other = tempfile::tempdir().unwrap();
    forced.checkpoints(other.path(), 0).unwrap();
    // A directory that cannot be written changes nothing.
    let file = other.path().join("file");
    std::fs::write(&file, "").unwrap();
    forced.checkpoints(&file.join("within"), 0).unwrap_err();
    forced.fit(&plain(), None, 1).unwrap();
    assert!(newest(other.path()).unwrap().is_some());
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

/// The variable by which a test starts itself as a program that trains until it is killed: the directory.
const KILLED: &str = "UNISONO_TEST_SHARDS";
const EPOCHS: u32 = 60;

/// Writes ten tar archives of 3 to 12 samples with the values of [`blobs`].
fn write_ten_shards(dir: &Path) {
    let (blobs, mut next) = (blobs(75, 3).unwrap(), 0);
    let member = |name: String, bytes: &[u8]| {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
        header[148..157].copy_from_slice(b"        0");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        header.extend_from_slice(bytes);
        header.resize(header.len().next_multiple_of(512), 0);
        header
    };
    for at in 0..10 {
        let mut archive = Vec::new();
        for index in next..next + 3 + at {
            let sample = blobs.fetch(index).unwrap();
            let of = |name: &str| sample.field(name).unwrap().values.clone();
            let x = of("x").as_f32().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let y = of("y").as_i32().unwrap()[0].to_string();
            archive.extend(member(format!("{index:04}.x"), &x));
            archive.extend(member(format!("{index:04}.cls"), y.as_bytes()));
        }
        next += 3 + at;
        archive.resize(archive.len() + 1024, 0);
        std::fs::write(dir.join(format!("{at:02}.tar")), archive).unwrap();
    }
}

/// Returns a loader over the archives in a directory.
fn of_shards(dir: &Path) -> Loader {
    let shards = TarShards::open((0..10).map(|at| dir.join(format!("{at:02}.tar"))), |files| {
        let bytes = files.bytes("x")?;
        let x: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        let y = files.text("cls")?.parse()?;
        Ok(Sample::new().with("x", Field::f32([x.len()], x)).with("y", Field::i32([], [y])))
    });
    Loader::new(shards.unwrap()).shuffle_window(1, 16).map("jitter", |sample, draws| {
        sample.f32_mut("x").into_iter().flatten().for_each(|x| *x += draws.range(-0.1, 0.1));
    })
}

/// Writes a line for each step, and gives whoever reads them time to kill this program.
struct Lines;

impl Observer for Lines {
    fn step(&mut self, step: &Step) {
        println!("step {}", step.step);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Trains on the shards until it is killed, if another test started it to.
#[test]
fn a_program_to_be_killed() {
    let Some(dir) = std::env::var_os(KILLED).map(PathBuf::from) else { return };
    let replicas = std::env::var("UNISONO_TEST_REPLICAS").unwrap().parse().unwrap();
    let loader = of_shards(&dir).threads(1 + replicas % 3);
    let builder = perceptron(4).global_batch(8).shards(8).replicas(replicas).observer(Lines);
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    trainer.checkpoints(&dir.join("run"), 1).unwrap();
    trainer.resume().unwrap();
    trainer.fit(&loader, None, EPOCHS).unwrap();
}

#[test]
fn a_run_on_ten_shards_that_is_killed_at_thirty_moments_ends_in_the_same_state() {
    let dir = tempfile::tempdir().unwrap();
    write_ten_shards(dir.path());
    let loader = of_shards(dir.path());
    let built = |replicas| {
        let builder = perceptron(4).global_batch(8).shards(8).replicas(replicas);
        builder.build(&loader.fields().unwrap()).unwrap()
    };
    let mut undisturbed = built(1);
    undisturbed.fit(&loader, None, EPOCHS).unwrap();

    // On a busy machine a kill may come before the last steps are saved. The next run then repeats them and
    // may be killed at the same step, which does not count again.
    let (mut moments, mut kills) = (BTreeSet::new(), 0);
    while moments.len() < 30 {
        assert!(kills < 100, "the runs do not go on from one another: {moments:?}");
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "resume_loader::a_program_to_be_killed", "--nocapture"]);
        program.env(KILLED, dir.path()).env("UNISONO_TEST_REPLICAS", ["1", "2", "3", "7"][kills % 4]);
        let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let steps = lines.map_while(Result::ok).filter(|line| line.contains("step "));
        let last = steps.take(2 + kills % 5).last().unwrap();
        // The kill comes in the middle of a step, of a save or between them.
        std::thread::sleep(Duration::from_micros(700 * (kills as u64 % 11)));
        program.kill().unwrap();
        assert!(!program.wait().unwrap().success(), "it ended before it was killed");
        moments.insert(last);
        kills += 1;
    }

    let mut last = built(2);
    last.checkpoints(&dir.path().join("run"), 0).unwrap();
    last.resume().unwrap().unwrap();
    last.fit(&loader, None, EPOCHS).unwrap();
    assert_eq!(last.state_sha256().unwrap(), undisturbed.state_sha256().unwrap());
    assert_eq!(last.history(), undisturbed.history());
    assert!(last.history().iter().all(|epoch| epoch.train.samples == 75), "each sample once an epoch");
}
