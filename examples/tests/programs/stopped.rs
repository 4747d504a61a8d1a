//! A process that is stopped for longer than the deadline of its replicas goes on with all of them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use unisono::data::Memory;
use unisono::{Dense, Sequential, Sgd, Trainer};
use unisono_examples::{Defaults, RunFlags};

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
