//! Runs a program on several machines with mpirun, and starts it again from its last checkpoint when machines
//! are lost, on whatever hosts the hostfile has by then.
//!
//!     relaunch --hostfile hosts --retries 5 -- target/release/digits --out run --checkpoint-every 50
//!
//! Signals that ask it to end go on to mpirun, for whose end it waits.

use std::io::{self, IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use unisono_examples::{say, signals};

/// The exit code of a program whose flags are wrong, or which refuses the data or the directory: starting it
/// again does not help.
const REFUSED: i32 = 2;
/// The signals that ask a run to end: SIGHUP, SIGINT and SIGTERM.
const ASKING: [i32; 3] = [1, 2, 15];
/// A program that a signal ended has this and the signal's number as its exit code.
const SIGNALLED: i32 = 128;
/// The time between two looks at mpirun and at the signals.
const POLL: Duration = Duration::from_millis(50);

#[derive(Parser)]
#[command(
    about = "Runs a program with mpirun, and restarts it from its last checkpoint when machines are lost"
)]
struct Flags {
    /// File with one line for each host; slots=N starts N ranks there. It is read again before each start
    #[arg(long, value_name = "FILE")]
    hostfile: PathBuf,
    /// Maximum number of restarts
    #[arg(long, value_name = "N", default_value_t = 5)]
    retries: u32,
    /// Seconds to wait before each restart
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pause: u64,
    /// Pass an argument to mpirun itself, such as --mpirun=--oversubscribe. Repeat the flag for several
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mpirun: Vec<String>,
    /// The program and its flags. The flags must include --out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<String>,
}

fn main() -> ExitCode {
    match relaunch(&Flags::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say!("relaunch: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the program until it succeeds, is asked to end, or has failed too often. Returns its exit code.
fn relaunch(flags: &Flags) -> Result<u8, String> {
    let mut failed = 0;
    let asked = Asked::new()?;
    let resumes = flags.program.iter().any(|arg| arg == "--resume");
    // The program refuses that too, unless it ends before it can: the next start would then resume that run.
    if let Some(dir) = out(&flags.program).filter(|dir| !resumes && holds_checkpoints(dir)) {
        let dir = dir.display();
        return Err(format!(
            "--out {dir}: holds the checkpoints of an earlier run: add --resume, or remove it"
        ));
    }
    loop {
        let ranks = ranks(&flags.hostfile)?;
        say!("relaunch: start {} on {ranks} ranks", failed + 1);
        let mut command = Command::new("mpirun");
        command.arg("--hostfile").arg(&flags.hostfile).args(["-n", &ranks.to_string(), "--bind-to", "none"]);
        command.args(&flags.mpirun).args(&flags.program);
        if failed > 0 && !resumes {
            command.arg("--resume");
        }
        let status = run(&mut command, &asked).map_err(|error| format!("mpirun: {error}"))?;
        let code = code(status);
        // 137, with SIGKILL, is that of a rank that was killed.
        let is_asked = ASKING.iter().any(|signal| code == SIGNALLED + signal);
        if code == 0 || code == REFUSED || is_asked {
            return Ok(u8::try_from(code).unwrap_or(1));
        }
        if let Some(code) = asked.code() {
            return Ok(code);
        }
        failed += 1;
        if failed > flags.retries {
            return Err(format!("the run failed {failed} times, the last time with {status}"));
        }
        say!("relaunch: the run failed with {status}: it goes on from its last checkpoint");
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(flags.pause) && asked.code().is_none() {
            sleep(POLL);
        }
        if let Some(code) = asked.code() {
            return Ok(code);
        }
    }
}

/// The signals that asked this program to end.
struct Asked {
    /// The last of them, 0 before.
    last: Arc<AtomicUsize>,
    /// The last of them that was not passed on yet, 0 if there is none.
    next: Arc<AtomicUsize>,
}

impl Asked {
    /// Listens to the signals.
    fn new() -> Result<Self, String> {
        let asked = Self { last: Arc::default(), next: Arc::default() };
        for signal in signals() {
            for place in [&asked.last, &asked.next] {
                signal_hook::flag::register_usize(signal, Arc::clone(place), signal as usize)
                    .map_err(|error| format!("signal {signal} cannot be handled: {error}"))?;
            }
        }
        Ok(asked)
    }

    /// Returns the exit code of a program that was asked to end, if it was.
    fn code(&self) -> Option<u8> {
        match self.last.load(Ordering::SeqCst) as i32 {
            0 => None,
            signal => u8::try_from(SIGNALLED + signal).ok(),
        }
    }

    /// Passes a signal on that came since the last call.
    fn pass_on(&self, child: &Child) {
        let signal = self.next.swap(0, Ordering::SeqCst) as i32;
        #[cfg(unix)]
        if let Some((signal, pid)) = rustix::process::Signal::from_named_raw(signal)
            .zip(rustix::process::Pid::from_raw(child.id() as i32))
        {
            // The child may have ended, and is waited for in either case.
            let _ = rustix::process::kill_process(pid, signal);
        }
        #[cfg(not(unix))]
        let _ = (signal, child);
    }
}

/// Runs a command to its end, with the signals that ask it to end.
fn run(command: &mut Command, asked: &Asked) -> io::Result<ExitStatus> {
    // Ctrl-C at a terminal signals the whole group of processes there. What asks once is to arrive once: the
    // second signal ends mpirun at once.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    // In a group of its own, mpirun would be stopped when it reads from the terminal.
    if stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        asked.pass_on(&child);
        sleep(POLL);
    }
}

/// Returns the exit code of a program, as a shell gives it.
fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return SIGNALLED + signal;
    }
    status.code().unwrap_or(1)
}

/// Returns the directory that a program is given with --out.
fn out(program: &[String]) -> Option<PathBuf> {
    let next = |at: usize| program.get(at + 1).map(PathBuf::from);
    program.iter().enumerate().find_map(|(at, arg)| match arg.strip_prefix("--out")? {
        "" => next(at),
        rest => rest.strip_prefix('=').map(PathBuf::from),
    })
}

/// Returns whether there are checkpoints in a run's directory, of the first two ranks, on this machine.
fn holds_checkpoints(dir: &Path) -> bool {
    let holds =
        |rank| unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).is_ok_and(|all| !all.is_empty());
    holds(0) || holds(1)
}

/// Returns the number of ranks that a hostfile has room for.
fn ranks(hostfile: &Path) -> Result<usize, String> {
    let text =
        std::fs::read_to_string(hostfile).map_err(|error| format!("{}: {error}", hostfile.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let slots = |line: &str| -> Result<usize, String> {
        match line.split_whitespace().find_map(|word| word.strip_prefix("slots=")) {
            Some(slots) => {
                slots.parse().map_err(|_| format!("{}: {line}: slots is no number", hostfile.display()))
            }
            None => Ok(1),
        }
    };
    let ranks = lines.map(slots).sum::<Result<usize, String>>()?;
    if ranks == 0 { Err(format!("{}: no host is left", hostfile.display())) } else { Ok(ranks) }
}
