//! A process that is stopped for longer than the deadline of its replicas goes on with all of them, and one
//! that is asked to stop before it can save says so.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use unisono::data::{ContentHash, Coverage, DataError, FieldSpec, Memory, Sample, Source};
use unisono::{Dense, Sequential, Sgd, Trainer};
use unisono_examples::{Defaults, Interrupted, RunFlags};

use crate::done;

/// The deadline of a replica.
const DEADLINE: Duration = Duration::from_secs(3);
/// The time for which the process is stopped.
const STOP: Duration = Duration::from_secs(5);
/// The fault that delays every replica, so that the stop finds the coordinator waiting for an answer.
const SLOW: &str = "replica-0=return(sample:8000);replica-1=return(sample:8000)";

const FLAGS: &str = "UNISONO_TEST_FLAGS";

#[test]
#[cfg_attr(not(unix), ignore = "there is no SIGSTOP")]
fn a_run_that_is_stopped_for_a_while_loses_nobody() {
    let whole = run(false, "");
    let stopped = run(true, SLOW);
    assert_eq!(done(&stopped, "state_sha256"), done(&whole, "state_sha256"));
    assert_eq!(stopped, whole);
}

/// Runs two replicas, with or without a stop, and returns what the run prints.
fn run(mut stops: bool, faults: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stopped::a_process_that_trains", "--nocapture"]);
    command.env(FLAGS, "stopped\n--replicas\n2\n--epochs\n3\n--json").env("FAILPOINTS", faults);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = String::new();
    let mut stdout = BufReader::new(process.stdout.take().unwrap());
    while stdout.read_line(&mut lines).unwrap() > 0 {
        // This is after the first epoch, in the middle of a step.
        if lines.ends_with("}\n") && std::mem::take(&mut stops) {
            sleep(Duration::from_millis(300));
            kill("-STOP", &process);
            sleep(STOP);
            kill("-CONT", &process);
        }
    }
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(process.wait().unwrap().success(), "{said}");
    assert!(!said.contains(" left at step "), "{said}");
    // Lines of the test harness are not part of the run's output.
    lines.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect()
}

fn kill(signal: &str, process: &Child) {
    // The result does not matter, because the process may have ended by itself.
    Command::new("kill").args([signal, &process.id().to_string()]).output().unwrap();
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
}

/// This is not a test by itself. The test above starts it as a process and stops it.
#[test]
fn a_process_that_trains() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    // The test harness may have begun a line.
    println!();
    let _faults = fail::FailScenario::setup();
    unisono::gpu::prepare_environment();
    let run = Flags::parse_from(flags.lines()).run;
    let run = run.settle(Defaults { epochs: 1, global_batch: 64, shards: 8, seed: 3 }).unwrap();
    let pixels: Vec<f32> = (0..256 * 6).map(|i| (i * 37 % 97) as f32 / 48.0 - 1.0).collect();
    let labels: Vec<i32> = (0..256).map(|i| i * 7 % 5).collect();
    let data = run.loader(Memory::labelled(pixels, [6], labels).unwrap());
    let model = Sequential::new().add(Dense::new(5));
    let builder = Trainer::builder(model).optimizer(Sgd::new(0.1)).deadline(DEADLINE);
    run.train(builder, &data, &data).unwrap();
}

/// The variable that keeps the data of a process from being hashed.
const NEVER_HASHED: &str = "UNISONO_TEST_NEVER_HASHED";

/// Nothing is saved of a resumed run before its data are found to be those of the run.
#[test]
#[cfg(unix)]
fn a_run_that_is_interrupted_before_it_can_save_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let start = |is_hashed: bool, flags: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "stopped::a_process_whose_data_may_never_be_hashed", "--nocapture"]);
        command.env(FLAGS, format!("stopped\n--replicas\n1\n--out\n{out}\n{flags}"));
        if !is_hashed {
            command.env(NEVER_HASHED, "1");
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let read = |mut process: Child, signal: bool| -> (String, ExitStatus) {
        let (mut said, mut stderr) = (String::new(), BufReader::new(process.stderr.take().unwrap()));
        while stderr.read_line(&mut said).unwrap() > 0 {
            // This is when the resumed run has made steps.
            if signal && said.contains("epoch 2") && !said.contains("asked to stop") {
                kill("-INT", &process);
                stderr.read_to_string(&mut said).unwrap();
            }
        }
        (said, process.wait().unwrap())
    };
    let (said, status) = read(start(true, "--epochs\n1"), false);
    assert!(status.success(), "{said}");
    let (said, status) = read(start(false, "--epochs\n100000\n--resume"), true);
    assert!(said.contains("; the steps after step 4 are not saved"), "{said}");
    assert_eq!(status.code(), Some(1), "{said}");
}

/// Samples that are hashed, or never, as a variable says.
struct Guarded(Memory);

impl Source for Guarded {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.0.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.0.fetch(index)
    }
    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        while std::env::var_os(NEVER_HASHED).is_some() {
            sleep(Duration::from_secs(1));
        }
        self.0.hash_content(samples, hash)
    }
}

/// This is not a test by itself, either.
#[test]
fn a_process_whose_data_may_never_be_hashed() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    unisono::gpu::prepare_environment();
    let run = Flags::parse_from(flags.lines()).run;
    let run = run.settle(Defaults { epochs: 1, global_batch: 16, shards: 4, seed: 3 }).unwrap();
    let pixels: Vec<f32> = (0..64 * 6).map(|i| (i * 37 % 97) as f32 / 48.0 - 1.0).collect();
    let labels: Vec<i32> = (0..64).map(|i| i * 7 % 5).collect();
    let samples = Memory::labelled(pixels, [6], labels).unwrap();
    let (data, held_out) = (run.loader(Guarded(samples.clone())), run.loader(samples));
    let builder = Trainer::builder(Sequential::new().add(Dense::new(5))).optimizer(Sgd::new(0.1));
    if let Err(error) = run.train(builder, &data, &held_out) {
        eprintln!("{error}");
        let is_saved = |interrupted: &Interrupted| interrupted.unsaved.is_none();
        std::process::exit(if error.downcast_ref().is_some_and(is_saved) { 130 } else { 1 });
    }
}
