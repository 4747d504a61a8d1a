//! Runs of the example programs on several ranks of this machine over MPI. `cargo xtask test --cluster`
//! installs MPI and runs them.

mod faults;
#[cfg(target_os = "linux")]
mod hosts;
mod killed;
#[cfg(target_os = "linux")]
mod network;
mod same_state;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A short run of the digits, which all tests compare with.
const RUN: [&str; 6] = ["--epochs", "3", "--adapter", "llvmpipe", "--cluster-deadline", "60"];

/// One run at a time: each has several ranks, and some have deadlines.
static ALONE: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_long() -> bool {
    std::env::var_os("UNISONO_LONG").is_some()
}

fn digits() -> &'static str {
    env!("CARGO_BIN_EXE_digits")
}

/// Returns mpirun for so many ranks of a program.
fn mpirun(ranks: usize, program: &str) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string(), program]);
    as_root(&mut command);
    command
}

fn as_root(command: &mut Command) {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the digest that a program printed once.
fn digest(output: &Output) -> String {
    let text = text(output);
    assert!(output.status.success(), "{text}");
    let found: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(" steps, state ")).map(|x| x.1).collect();
    assert_eq!(found.len(), 1, "one rank prints the digest: {text}");
    found[0].to_owned()
}

fn alone(program: &str, args: &[&str]) -> String {
    digest(&Command::new(program).args(args).output().unwrap())
}

/// Starts a run that saves every ten steps, with the rank in each process's arguments.
fn start(ranks: usize, out: &Path, epochs: &str, deadline: &str) -> Child {
    let out = out.to_str().unwrap();
    let args = ["--out", out, "--checkpoint-every", "10", "--epochs", epochs, "--adapter", "llvmpipe"];
    let mut command = mpirun(ranks, digits());
    command.args(args).args(["--cluster-deadline", deadline]).stderr(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits until the run has saved a checkpoint, and returns the process of a rank.
fn process_of(rank: usize, out: &Path) -> u32 {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < Duration::from_secs(120), "no checkpoint in {}", out.display());
        let saved = unisono::checkpoint::list(out).is_ok_and(|list| !list.is_empty());
        let found = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let own = String::from_utf8_lossy(&line).split('\0').next() == Some(digits());
            let is_of_run = own && String::from_utf8_lossy(&line).contains(out.to_str()?);
            let variables = fs::read(entry.path().join("environ")).ok()?;
            let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
            let has = String::from_utf8_lossy(&variables).split('\0').any(|variable| variable == wanted);
            (is_of_run && has).then_some(pid)
        });
        if let Some(pid) = found.filter(|_| saved) {
            return pid;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}
