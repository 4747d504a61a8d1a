//! Runs of the example programs on several ranks of this machine over MPI. `cargo xtask test --world`
//! installs MPI and runs them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A short run of the digits, which all tests compare with.
const RUN: [&str; 6] = ["--epochs", "3", "--adapter", "llvmpipe", "--world-deadline", "60"];

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

#[test]
fn digits_ends_in_the_same_state_on_any_number_of_ranks() {
    let wanted = alone(digits(), &RUN);
    for (ranks, replicas) in [(1, "1"), (2, "1"), (2, "2"), (3, "1"), (4, "1"), (4, "2")] {
        let ran = mpirun(ranks, digits()).args(RUN).args(["--replicas", replicas]).output().unwrap();
        assert_eq!(digest(&ran), wanted, "{ranks} ranks with {replicas} replicas");
    }
}

#[test]
fn a_rank_with_another_flag_is_refused_by_name() {
    let script = format!(
        "[ $OMPI_COMM_WORLD_RANK = 2 ] && extra='--global-batch 32'; exec {} {} $extra",
        digits(),
        RUN.join(" ")
    );
    let ran = mpirun(3, "bash").args(["-c", &script]).output().unwrap();
    let text = text(&ran);
    assert!(!ran.status.success(), "{text}");
    assert!(text.contains("): --global-batch 32, rank 0: 64"), "{text}");
    assert!(text.contains("error: rank 2 ("), "{text}");
}

/// Starts a run that saves every ten steps, with the rank in each process's arguments.
fn start(ranks: usize, out: &Path, epochs: &str, deadline: &str) -> Child {
    let out = out.to_str().unwrap();
    let args = ["--out", out, "--checkpoint-every", "10", "--epochs", epochs, "--adapter", "llvmpipe"];
    let mut command = mpirun(ranks, digits());
    command.args(args).args(["--world-deadline", deadline]).stderr(Stdio::piped()).stdout(Stdio::piped());
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

#[test]
fn a_killed_rank_ends_the_job_which_goes_on_with_fewer_and_with_more() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let wanted = alone(digits(), &["--epochs", "8", "--adapter", "llvmpipe"]);
    let run = start(4, &out, "8", "60");
    signal(process_of(2, &out), "-KILL");
    let since = Instant::now();
    let ended = run.wait_with_output().unwrap();
    assert!(since.elapsed() < Duration::from_secs(10), "it took {:?}", since.elapsed());
    assert!(!ended.status.success() && text(&ended).contains("rank 2 with PID"), "{}", text(&ended));

    // Rank 0 is lost with its disk: rank 1 has a checkpoint too.
    let resume = |ranks: usize, epochs: &str| {
        let args = ["--resume", "--out", out.to_str().unwrap(), "--epochs", epochs, "--adapter", "llvmpipe"];
        mpirun(ranks, digits()).args(args).args(["--checkpoint-every", "10"]).output().unwrap()
    };
    fs::remove_dir_all(&out).unwrap();
    let ended = resume(3, "5");
    assert!(ended.status.success() && text(&ended).contains("resumed at step "), "{}", text(&ended));
    let ended = resume(5, "8");
    assert!(text(&ended).contains("resumed at step "), "{}", text(&ended));
    assert_eq!(digest(&ended), wanted);
}

/// One kill, and thirty at random moments where `UNISONO_LONG` is set.
#[test]
fn the_relaunch_loop_goes_on_with_the_hosts_that_are_left() {
    let kills = if std::env::var_os("UNISONO_LONG").is_some() { 30 } else { 1 };
    let epochs = (5 + 15 * kills).to_string();
    let dir = tempfile::tempdir().unwrap();
    let (out, hosts) = (dir.path().join("run"), dir.path().join("hosts"));
    let wanted = alone(digits(), &["--epochs", &epochs, "--adapter", "llvmpipe"]);
    fs::write(&hosts, "localhost slots=4\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    as_root(&mut command);
    command.arg("--hostfile").arg(&hosts).args(["--pause", "0", "--retries", "40", "--", digits()]);
    command.args(["--out", out.to_str().unwrap(), "--checkpoint-every", "10", "--epochs", &epochs]);
    command.args(["--adapter", "llvmpipe"]);
    let run = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    for kill in 0..kills {
        // The moment differs from kill to kill.
        std::thread::sleep(Duration::from_millis(kill * 7919 % 1000));
        let pid = process_of(kill as usize % 3, &out);
        fs::write(&hosts, format!("localhost slots={}\n", 3 + kill % 2)).unwrap();
        signal(pid, "-KILL");
        while Path::new(&format!("/proc/{pid}/environ")).exists()
            && fs::read(format!("/proc/{pid}/environ")).is_ok()
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let ended = run.wait_with_output().unwrap();
    assert!(text(&ended).contains("start 2 on 3 ranks"), "{}", text(&ended));
    assert_eq!(digest(&ended), wanted);
}

#[test]
fn a_rank_that_does_not_answer_is_named_within_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let run = start(3, &out, "200", "5");
    let pid = process_of(1, &out);
    signal(pid, "-STOP");
    let since = Instant::now();
    let ended = run.wait_with_output().unwrap();
    let took = since.elapsed();
    let text = text(&ended);
    assert!(!ended.status.success() && text.contains("no answer from rank 1 ("), "{text}");
    assert!(took < Duration::from_secs(30), "it took {took:?}: {text}");
}

#[test]
fn a_signal_to_one_rank_ends_all_after_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut run = start(3, &out, "200", "60");
    signal(process_of(2, &out), "-TERM");
    let since = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < Duration::from_secs(60), "the run did not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = run.wait_with_output().unwrap();
    assert!(
        text(&ended).contains("asked to stop: step ") || text(&ended).contains("interrupted after step "),
        "{}",
        text(&ended)
    );
    let step = |rank| unisono::checkpoint::list(unisono::dir_of_rank(&out, rank)).unwrap()[0].0;
    assert_eq!(step(0), step(1), "both save the same step");
    std::io::stderr().flush().unwrap();
}
