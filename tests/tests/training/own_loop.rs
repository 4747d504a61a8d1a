//! Loops of the user: they record the same history as a fit does.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unisono::data::{Batch, Field, Loader, LoaderState, Replay, Sample};
use unisono::{AdamW, Dense, MeanSquaredError, Relu, Sequential, Trainer};
use unisono_tests::{FEATURES, blobs, perceptron};

const SAMPLES: usize = 23;
const BATCH: usize = 6;

/// Returns a loader in which two samples are bad until they are mended.
fn data() -> (Loader, Arc<AtomicBool>) {
    let source = blobs(SAMPLES, 3).unwrap();
    let x = source.array("x").and_then(|x| x.as_f32()).unwrap();
    let marked = [5, 17].map(|i| x[i * FEATURES]);
    let mended = Arc::new(AtomicBool::new(false));
    let good = Arc::clone(&mended);
    let loader = Loader::new(source).shuffle(4).threads(1).batch(BATCH).skip_bad(2);
    let loader = loader.try_map("bad", move |sample, _| {
        let bad = marked.contains(&sample.f32_mut("x").unwrap()[0]) && !good.load(Ordering::Relaxed);
        if bad { Err("bad".into()) } else { Ok(()) }
    });
    (loader, mended)
}

fn build(data: &Loader) -> Trainer {
    perceptron(8).global_batch(BATCH).replicas(1).build(&data.fields().unwrap()).unwrap()
}

#[test]
fn epochs_have_means_of_their_own_and_what_was_left_out_stays_so() {
    let (train, mended) = data();
    let mut fitted = build(&train);
    fitted.fit(&train, None, 3).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let mut own = build(&train);
    own.checkpoints(dir.path(), 0).unwrap();
    for batch in train.epochs(LoaderState::default(), 2).unwrap() {
        let batch = batch.unwrap();
        let (epoch, last) = (batch.epoch, batch.after.epoch > batch.epoch);
        let step = own.step(&batch).unwrap();
        assert_eq!(step.done, if last { SAMPLES as u64 } else { batch.after.sample });
        if last {
            assert_eq!(step.so_far, fitted.history()[epoch as usize].train, "epoch {epoch}");
        }
    }
    assert_eq!(own.skipped(), [5, 17]);
    own.save_behind().unwrap();
    own.finish_saves().unwrap();
    drop(own);

    // The samples are good by now and stay left out. A fit's first epoch is complete, whatever was before.
    mended.store(true, Ordering::Relaxed);
    let mut resumed = build(&train);
    resumed.checkpoints(dir.path(), 0).unwrap();
    resumed.resume().unwrap().unwrap();
    resumed.fit(&train, None, 3).unwrap();
    assert_eq!(resumed.history()[..], fitted.history()[2..]);
    assert_eq!(resumed.state_sha256().unwrap(), fitted.state_sha256().unwrap());
}

/// The same epoch from its start, or another one, does not continue the epoch before.
#[test]
fn a_loop_that_starts_elsewhere_starts_its_means() {
    let (train, _) = data();
    let mut own = build(&train);
    let first = |epoch: u32| train.epoch(epoch).unwrap().next().unwrap().unwrap();
    for epoch in [0, 4, 1] {
        let batch = first(epoch);
        assert_eq!(own.step(&batch).unwrap().so_far.samples, batch.len() as u64, "epoch {epoch}");
    }
}

/// The steps of a run that makes its own samples.
const PLAYED: u64 = 30;

fn replay() -> Replay {
    let mut replay = Replay::new(12, 7);
    let first = Sample::new().with("x", Field::f32([2], [0.5, -0.5])).with("y", Field::f32([1], [0.25]));
    replay.push(&first).unwrap();
    replay
}

/// Returns a trainer of a run with a buffer, resumed if the directory has a checkpoint.
fn player(replicas: usize, dir: Option<&Path>) -> Trainer {
    let model = Sequential::new().add(Dense::new(8)).add(Relu).add(Dense::new(1));
    let builder = Trainer::builder(model).loss(MeanSquaredError).optimizer(AdamW::new(0.05));
    let builder = builder.global_batch(8).shards(8).replicas(replicas).adapter("cpu");
    let mut trainer = builder.build(replay().fields()).unwrap();
    trainer.keep_replay(replay());
    if let Some(dir) = dir {
        trainer.checkpoints(dir, 0).unwrap();
        trainer.resume().unwrap();
    }
    trainer
}

/// Adds a sample that depends on the model, draws a batch and takes a step.
fn play(trainer: &mut Trainer) {
    let at = trainer.steps() as f32 / PLAYED as f32;
    let asked = Batch::of([("x", Field::f32([1, 2], [at, 0.5]))]).unwrap();
    let found = trainer.predict_batch_outputs(&asked, &["output"]).unwrap();
    let guess = found.get("output").unwrap().values[0].clamp(-1.0, 1.0);
    let sample =
        Sample::new().with("x", Field::f32([2], [at, guess])).with("y", Field::f32([1], [at - guess]));
    let replay = trainer.replay_mut().unwrap();
    replay.push(&sample).unwrap();
    let batch = replay.draw(8).unwrap();
    trainer.step(&batch).unwrap();
}

fn played_to_the_end(mut trainer: Trainer) -> (String, Replay) {
    while trainer.steps() < PLAYED {
        play(&mut trainer);
    }
    (trainer.state_sha256().unwrap(), trainer.replay().unwrap().clone())
}

#[test]
fn a_run_with_a_replay_buffer_that_ends_at_any_step_goes_on_with_the_same_samples() {
    let expected = played_to_the_end(player(1, None));
    assert_eq!((expected.1.pushed(), expected.1.len()), (31, 12));
    for replicas in [2, 3, 7] {
        assert_eq!(played_to_the_end(player(replicas, None)), expected, "{replicas} replicas");
    }
    let dir = tempfile::tempdir().unwrap();
    for end in 1..=PLAYED {
        let mut trainer = player([1, 2, 3, 7][end as usize % 4], Some(dir.path()));
        assert_eq!(trainer.steps(), end - 1);
        play(&mut trainer);
        trainer.save().unwrap();
        // What comes after the save is lost.
        play(&mut trainer);
    }
    assert_eq!(played_to_the_end(player(2, Some(dir.path()))), expected);
}

#[test]
fn a_buffer_that_is_not_the_runs_is_refused_and_one_of_the_run_comes_back_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = player(1, Some(dir.path()));
    play(&mut first);
    first.save().unwrap();
    let kept = first.replay().cloned();
    drop(first);
    let mut other = player(1, None);
    other.checkpoints(dir.path(), 0).unwrap();
    other.keep_replay(Replay::new(13, 7));
    let error = other.resume().unwrap_err().to_string();
    let told =
        "the replay buffer of the run is one of 12 samples with seed 7, not one of 13 samples with seed 7";
    assert!(error.contains(told), "{error}");
    other.keep_replay(Replay::new(12, 7));
    other.resume().unwrap().unwrap();
    assert_eq!(other.replay().cloned(), kept);
    // A run without one says that it has none.
    let (train, _) = data();
    let none = tempfile::tempdir().unwrap();
    let mut fitted = build(&train);
    fitted.checkpoints(none.path(), 0).unwrap();
    fitted.fit(&train, None, 1).unwrap();
    drop(fitted);
    let mut fitted = build(&train);
    fitted.checkpoints(none.path(), 0).unwrap();
    fitted.keep_replay(replay());
    let error = fitted.resume().unwrap_err().to_string();
    assert!(error.contains("the checkpoint has no replay buffer, and this run keeps one"), "{error}");
}

/// The variable by which a test starts itself as a program that plays until it is killed: the directory.
const KILLED: &str = "UNISONO_TEST_REPLAY";

/// Plays until it is killed, if another test started it to.
#[test]
fn a_player_to_be_killed() {
    let Some(dir) = std::env::var_os(KILLED).map(PathBuf::from) else { return };
    let mut trainer = player(std::env::var("UNISONO_TEST_REPLICAS").unwrap().parse().unwrap(), Some(&dir));
    while trainer.steps() < PLAYED {
        play(&mut trainer);
        trainer.save().unwrap();
        println!("step {}", trainer.steps());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_run_with_a_replay_buffer_that_is_killed_ends_in_the_same_state() {
    let expected = played_to_the_end(player(1, None));
    let dir = tempfile::tempdir().unwrap();
    for (at, replicas) in ["2", "1", "7", "3"].into_iter().enumerate() {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "own_loop::a_player_to_be_killed", "--nocapture"]);
        program.env(KILLED, dir.path()).env("UNISONO_TEST_REPLICAS", replicas);
        let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let steps = lines.map_while(Result::ok).filter(|line| line.contains("step "));
        assert!(steps.take(2 + at).last().is_some());
        // The kill comes in the middle of a step, of a save or between them.
        std::thread::sleep(std::time::Duration::from_micros(1500 * at as u64));
        program.kill().unwrap();
        assert!(!program.wait().unwrap().success(), "it ended before it was killed");
    }
    assert_eq!(played_to_the_end(player(2, Some(dir.path()))), expected);
}
