//! Runs that are killed at random moments, and resumed each time on other numbers of replicas and threads,
//! some of which are lost on the way. The files at the end are those of an undisturbed run.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use unisono::data::{Draws, Memory, Sample};
use unisono::{
    Accuracy, BatchNorm, Conv2d, Dense, Dropout, Flatten, MaxPool2d, Relu, Schedule, Sequential, Sgd, Trainer,
};
use unisono_examples::{Defaults, RunFlags};

use crate::{csv, lines};

/// The replicas and loader threads of each process in turn.
const LIVES: [[&str; 2]; 6] = [["2", "1"], ["1", "4"], ["3", "2"], ["7", "1"], ["2", "3"], ["5", "4"]];

/// Returns the number of kills: fifty in the long tests (`cargo xtask test --long`).
fn kills() -> usize {
    if std::env::var_os("UNISONO_LONG").is_some() { 50 } else { 6 }
}

/// The faults that can happen to a replica.
const LOSSES: [&str; 4] = ["lose", "panic", "out-of-memory", "transfer"];

/// The source of random moments. A failing test prints them.
struct Moments(u64);

impl Moments {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Returns faults for the first steps of a process in the syntax of `FAILPOINTS`. They hit any of its
    /// replicas, but never all of them.
    fn losses(&mut self, replicas: u64) -> String {
        let (lost, first) = (self.below(replicas), self.below(replicas));
        let points = (0..lost).map(|i| {
            let (replica, kind) = ((first + i) % replicas, LOSSES[self.below(4) as usize]);
            format!("replica-{replica}:step-{}=return({kind})", self.below(20))
        });
        points.collect::<Vec<_>>().join(";")
    }
}

/// Runs `start(out, flags)` once undisturbed and once with faults and kills, and compares all files of the
/// final state. With `alone`, each process that is killed has one replica.
fn dies_and_is_the_same(epochs: usize, alone: bool, start: impl Fn(&Path, &[&str]) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let (peace, war) = (dir.path().join("peace"), dir.path().join("war"));
    let epochs = (epochs * kills()).to_string();
    // The life of the process that ends the run. No process that is killed has it.
    let last = kills() * LIVES.len() + 3;
    let replicas_of = |out: &Path, life: usize| match alone && out == war && life < kills() {
        true => "1",
        false => LIVES[life % LIVES.len()][0],
    };
    let flags = |out: &Path, life: usize| {
        let [replicas, threads] = [replicas_of(out, life), LIVES[life % LIVES.len()][1]];
        ["--epochs", &*epochs, "--replicas", replicas, "--loader-threads", threads, "--checkpoint-every", "7"]
            .map(str::to_owned)
    };
    let said = dir.path().join("said");
    let run = |out: &Path, life: usize, more: &[&str], losses: &str| {
        let flags = flags(out, life);
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let mut command = start(out, &flags);
        let said: File = OpenOptions::new().create(true).append(true).open(&said).unwrap();
        command.env("FAILPOINTS", losses).stdout(Stdio::null()).stderr(said);
        command
    };
    assert!(run(&peace, 0, &[], "").status().unwrap().success());
    let lost = || fs::read_to_string(&said).unwrap().matches(" left at step ").count();
    assert_eq!(lost(), 0);

    let seed = std::process::id();
    eprintln!("the seed of the moments is {seed}");
    let mut moments = Moments(seed.into());
    let (mut killed, mut at) = (0, Vec::new());
    for life in 0..kills() {
        let before = step(&war);
        let losses = moments.losses(replicas_of(&war, life).parse().unwrap());
        let process = run(&war, life, &["--resume"], &losses);
        // The last one gets on for certain.
        let saves = life + 1 == kills();
        let status = lives_a_while(process, &war, before, saves, &mut moments);
        // A process that a signal ended has no exit code.
        assert!(!cfg!(unix) || matches!(status.code(), None | Some(0)), "it failed by itself: {status}");
        killed += usize::from(!status.success());
        at.push(step(&war));
        // The process may have ended before it was killed.
        if status.success() {
            break;
        }
    }
    assert!(killed * 10 >= kills() * 8, "killed only {killed} times, at {at:?}");
    assert!(at.iter().max() > at.first(), "it never got on: {at:?}");
    // The last process has seven replicas and loses two of them at once.
    let losses = "replica-5:step-0=return(lose);replica-2:step-0=return(panic)";
    assert!(run(&war, last, &["--resume"], losses).status().unwrap().success(), "after {at:?}");
    assert!(lost() > 0, "no replica was lost: {}", fs::read_to_string(&said).unwrap());

    let [expected, found] = [&peace, &war].map(|dir| unisono::checkpoint::list(dir).unwrap().remove(0));
    assert_eq!(expected.0, found.0);
    for name in ["model.safetensors", "optimizer.safetensors", "trainer.json", "manifest.json"] {
        let [expected, found] = [&expected.1, &found.1].map(|dir| fs::read(dir.join(name)).unwrap());
        assert!(expected == found, "{name} differs after kills at {at:?}");
    }
    let [expected, found] = [&peace, &war].map(|dir| fs::read(dir.join("model.safetensors")).unwrap());
    assert!(expected == found, "the final model differs after kills at {at:?}");
}

/// Returns the step of the newest complete checkpoint. No checkpoint may be broken.
fn step(out: &Path) -> u64 {
    let Some(newest) = unisono::checkpoint::newest(out).unwrap() else { return 0 };
    assert_eq!(newest.skipped, []);
    newest.step
}

/// Starts a process in its own process group and kills the group some time after it began, or some time after
/// it saved a checkpoint later than `before`, always so with `saves`.
fn lives_a_while(
    mut command: Command,
    out: &Path,
    before: u64,
    saves: bool,
    moments: &mut Moments,
) -> ExitStatus {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut process = command.spawn().unwrap();
    if moments.below(3) > 0 || saves {
        let newest = || unisono::checkpoint::list(out).ok()?.first().map(|(step, _)| *step);
        let patience = Instant::now() + Duration::from_secs(300);
        while newest().unwrap_or(0) <= before && process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < patience, "nothing was saved in five minutes");
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_micros(moments.below(60_000)));
    } else {
        sleep(Duration::from_millis(moments.below(700)));
    }
    kill(&mut process);
    process.wait().unwrap()
}

/// Sends SIGKILL to the process group, on systems that have process groups.
fn kill(process: &mut Child) {
    if cfg!(unix) {
        // The result does not matter, because the process may have ended by itself.
        Command::new("kill").args(["-KILL", "--", &format!("-{}", process.id())]).output().unwrap();
    } else {
        process.kill().unwrap();
    }
}

#[test]
fn digits_killed_at_random_moments_end_in_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(500));
    dies_and_is_the_same(28, false, |out, flags| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
        command.arg("--data").arg(&data).arg("--out").arg(out).args(flags);
        command
    });
}

const FLAGS: &str = "UNISONO_TEST_FLAGS";
/// The number of steps in flight of [`convolutional`].
const IN_FLIGHT: &str = "UNISONO_TEST_IN_FLIGHT";

#[test]
fn a_convolutional_model_killed_at_random_moments_ends_in_the_same_files() {
    dies_and_is_the_same(40, false, |out, flags| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let flags = [&["conv", "--out", out.to_str().unwrap()], flags].concat().join("\n");
        command.args(["--exact", "killed::a_process_that_trains"]).env(FLAGS, flags);
        command
    });
}

/// The device computes a step while the next one is submitted: both may be lost, and neither may be half
/// done.
#[test]
fn a_model_killed_during_two_steps_in_flight_ends_in_the_same_files() {
    dies_and_is_the_same(40, true, |out, flags| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let flags = [&["conv", "--out", out.to_str().unwrap()], flags].concat().join("\n");
        command.args(["--exact", "killed::a_process_that_trains"]).env(FLAGS, flags).env(IN_FLIGHT, "2");
        command
    });
}

#[derive(Parser)]
struct Conv {
    #[command(flatten)]
    run: RunFlags,
}

/// This is not a test by itself. The test above starts it as a process and kills it.
#[test]
fn a_process_that_trains() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let _faults = fail::FailScenario::setup();
    convolutional(&Conv::parse_from(flags.lines()).run).unwrap();
}

/// Everything that a run carries is restored: batch norm has statistics, dropout and flips draw random
/// numbers, and the schedule depends on the step.
fn convolutional(flags: &RunFlags) -> Result<(), unisono_examples::Error> {
    unisono::gpu::prepare_environment();
    let run = flags.settle(Defaults { epochs: 1, global_batch: 32, shards: 8, seed: 3 })?;
    let (pixels, labels) = images();
    let held_out =
        run.loader(Memory::labelled(pixels[..64 * 40].to_vec(), [1, 8, 8], labels[..40].to_vec())?);
    let train = run.loader(Memory::labelled(pixels, [1, 8, 8], labels)?).map("flip", flip).shuffle(run.seed);
    let model = Sequential::new()
        .add(Conv2d::new(4, 3).padding(1))
        .add(BatchNorm::new())
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.3))
        .add(Dense::new(10));
    let schedule = Schedule::cosine(0.1, 500).warm_up(10);
    let builder = Trainer::builder(model).optimizer(Sgd::new(schedule).momentum(0.9)).metric(Accuracy);
    let builder = match std::env::var(IN_FLIGHT) {
        Ok(steps) => builder.steps_in_flight(steps.parse().unwrap()),
        Err(_) => builder,
    };
    run.train(builder, &train, &held_out).map(drop)
}

fn images() -> (Vec<f32>, Vec<i32>) {
    let numbers = lines(300).into_iter().map(|line| line.split(',').map(|x| x.parse().unwrap()).collect());
    let numbers: Vec<Vec<f32>> = numbers.collect();
    let pixels = numbers.iter().flat_map(|line| line[..64].iter().map(|x| x / 16.0)).collect();
    (pixels, numbers.iter().map(|line| line[64] as i32).collect())
}

/// Mirrors an image with a probability of one half.
fn flip(sample: &mut Sample, draws: &mut Draws) {
    if let Some(pixels) = sample.f32_mut("x").filter(|_| draws.range(0.0, 1.0) < 0.5) {
        pixels.chunks_mut(8).for_each(<[f32]>::reverse);
    }
}
