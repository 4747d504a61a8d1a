//! Runs whose data do not come: a source that never returns, as from a disk or a network that hangs. One
//! signal ends such a run within seconds, with the signal's exit code and a checkpoint of the steps done.
//!
//! This program has no test harness, because it is also the program that hangs: it starts itself, with
//! [`CHILD`] set.

use std::io::{BufRead, BufReader, Write, stderr};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{park, sleep, spawn};
use std::time::{Duration, Instant};

use clap::Parser;
use unisono::data::{DataError, Field, FieldDType, FieldSpec, Sample, Source};
use unisono::gpu::{Kind, select};
use unisono::{Dense, Observer, Sequential, Sgd, Step, Trainer};
use unisono_examples::{Defaults, Error, RunFlags, program};

/// The variable that makes this program the one that hangs.
const CHILD: &str = "UNISONO_TEST_HANGS";
const DEFAULTS: Defaults = Defaults { epochs: 2, global_batch: 16, shards: 4, seed: 3 };
/// The number of samples, for 16 steps in an epoch.
const SAMPLES: u64 = 256;
/// The time after which a run that has not come to where it hangs is killed.
const LONGEST: Duration = Duration::from_secs(120);
/// The time after which a run that was asked to stop counts as one that does not.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
    /// Training does not get past this sample
    #[arg(long, default_value_t = SAMPLES)]
    train: u64,
    /// Evaluation does not get past this sample
    #[arg(long, default_value_t = SAMPLES)]
    held_out: u64,
}

/// A source that does not return the samples from `stuck_from` on.
struct Stuck {
    fields: [FieldSpec; 2],
    stuck_from: u64,
}

impl Stuck {
    fn new(stuck_from: u64) -> Self {
        let field = |name: &str, dtype, shape| FieldSpec { name: name.into(), dtype, shape };
        Self {
            fields: [field("x", FieldDType::F32, vec![3]), field("y", FieldDType::I32, vec![])],
            stuck_from,
        }
    }
}

impl Source for Stuck {
    fn len(&self) -> u64 {
        SAMPLES
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        if index >= self.stuck_from {
            let _ = writeln!(stderr(), "sample {index} hangs");
            loop {
                park();
            }
        }
        let x = [1, 7, 31].map(|factor| (index * factor % 17) as f32 / 17.0);
        Ok(Sample::new().with("x", Field::f32([3], x)).with("y", Field::i32([], [(index % 3) as i32])))
    }
}

/// Says which step is done.
struct Says;

impl Observer for Says {
    fn step(&mut self, step: &Step) {
        let _ = writeln!(stderr(), "{}", done(step.step + 1));
    }
}

fn done(steps: u64) -> String {
    format!("step {steps} is done")
}

/// Trains as the programs do.
fn train(flags: Flags) -> Result<(), Error> {
    let run = flags.run.settle(DEFAULTS)?;
    let train = run.loader(Stuck::new(flags.train));
    let held_out = run.loader(Stuck::new(flags.held_out)).map("same", |_, _| ());
    let builder = Trainer::builder(Sequential::new().add(Dense::new(3))).optimizer(Sgd::new(0.1));
    let builder = builder.observer(Says);
    run.train(builder, &train, &held_out).map(drop)
}

fn start(out: &Path, flags: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, "1").arg("--out").arg(out).args(["--replicas", "1"]).args(flags);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    (child, stderr)
}

/// Ends a run that hangs, once it has told of so many steps, with one signal. Returns its exit code.
fn interrupted(out: &Path, flags: &[&str], told: u64, signal: &str) -> Option<i32> {
    let (mut child, mut stderr) = start(out, flags);
    let (mut line, mut hangs, mut is_done) = (String::new(), false, told == 0);
    let (came, waits) = channel::<()>();
    let process = child.id().to_string();
    let watch = spawn(move || {
        if waits.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-9", &process]).status();
        }
    });
    while !hangs || !is_done {
        line.clear();
        let read = stderr.read_line(&mut line).unwrap();
        assert!(read > 0, "{flags:?}: it ended or was killed before step {told} and the sample that hangs");
        hangs |= line.ends_with("hangs\n");
        is_done |= line.trim_end().ends_with(&done(told));
    }
    drop(came);
    watch.join().unwrap();
    // By now it waits for the sample.
    sleep(Duration::from_millis(300));
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if since.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{flags:?}: one {signal} did not end it within {PATIENCE:?}");
        }
        sleep(Duration::from_millis(10));
    }
}

/// Returns the state in which a run ends that does not hang.
fn finished(out: &Path, flags: &[&str]) -> String {
    let (mut child, stderr) = start(out, flags);
    let lines: Vec<String> = stderr.lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    lines.into_iter().find(|line| line.contains(" steps, state ")).unwrap()
}

fn main() -> ExitCode {
    unisono::gpu::prepare_environment();
    if std::env::var_os(CHILD).is_some() {
        return program(train);
    }
    if cfg!(not(unix)) {
        return ExitCode::SUCCESS;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = finished(&dir.path().join("whole"), &[]);
    // The loader runs ahead, so it hangs while a step before is done, or before the first. A GPU is at step 6
    // by the time that step 5 is told of, and step 6 only when the run has ceased to wait for the next batch.
    let told = if select::<&str>(&[]).unwrap()[0].kind == Kind::Cpu { 6 } else { 5 };
    let training: &[&str] = &["--train", "100", "--checkpoint-every", "4"];
    let cases: [(&[&str], &str, i32, u64, u64); 3] = [
        (training, "-INT", 130, told, 6),
        (&["--held-out", "20"], "-TERM", 143, 16, 16),
        (&["--held-out", "0"], "-INT", 130, 0, 0),
    ];
    for (flags, signal, code, told, steps) in cases {
        let out = dir.path().join(flags.join(""));
        assert_eq!(interrupted(&out, flags, told, signal), Some(code), "{flags:?}");
        let saved = unisono::SavedRun::newest(&out).unwrap().expect("a checkpoint of the steps done");
        assert_eq!(saved.steps(), steps, "{flags:?}");
        assert_eq!(finished(&out, &["--resume"]), whole, "{flags:?}");
        println!("{flags:?}: {signal} ends it with {code} after step {steps}");
    }
    ExitCode::SUCCESS
}
