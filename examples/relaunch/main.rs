//! Runs a program on several machines with mpirun. When machines are lost, restarts it from its last
//! checkpoint on the hosts of the hostfile that still answer. When a lost host answers again, the run uses it
//! again.
//!
//!     relaunch --hostfile hosts --retries 5 -- target/release/digits --out run --checkpoint-every 50
//!
//! Signals that ask it to end are passed on to mpirun. It then waits for mpirun to end.

mod answer;
mod hostfile;
mod hosts;
mod mpirun;
mod plan;
mod watch;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use unisono_examples::{say, signals};

use crate::hostfile::{Written, ranks};
use crate::hosts::Question;
use crate::mpirun::{Ended, Limits, run};
use crate::plan::{Plan, plan, settings};
use crate::watch::Watch;

/// The exit code of a program whose flags are wrong, or which refuses the data or the directory: starting it
/// again does not help.
const REFUSED: i32 = 2;
/// The signals that ask a run to end: SIGHUP, SIGINT and SIGTERM.
const ASKING: [i32; 3] = [1, 2, 15];
/// A program that a signal ended has this and the signal's number as its exit code.
const SIGNALLED: i32 = 128;
/// The time between two looks at the signals.
const POLL: Duration = Duration::from_millis(50);
/// The time between two questions to hosts, while too few answer.
const AGAIN: Duration = Duration::from_secs(10);
/// A run that fails sooner doubles the pause before the next start, up to [`MOST_PAUSE`].
const SOON: Duration = Duration::from_secs(30);
/// The longest pause, unless a longer one is asked for.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// The deadline of a run that does not give one, in seconds.
const CLUSTER_DEADLINE: u64 = 900;

#[derive(Parser)]
#[command(
    about = "Runs a program with mpirun, and restarts it from its last checkpoint when machines are lost"
)]
struct Flags {
    /// File with one host on each line. slots=N sets the number of ranks on the host [1 without it]. The file
    /// is read again before each start
    #[arg(long, value_name = "FILE")]
    hostfile: PathBuf,
    /// Maximum number of restarts
    #[arg(long, value_name = "N", default_value_t = 5)]
    retries: u32,
    /// Seconds to wait before each restart. If a run fails at once, the time doubles, up to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pause: u64,
    /// Number of hosts that must answer before a start [default: all for the first start, 1 for restarts]
    #[arg(long, value_name = "N")]
    min_hosts: Option<usize>,
    /// Seconds to wait for enough hosts to answer before a restart
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Seconds that mpirun may take to start the program
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    start_deadline: u64,
    /// Seconds that mpirun may take to end after the ranks on this machine have ended. If a host is gone,
    /// mpirun itself waits much longer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    end_deadline: u64,
    /// Seconds between checks of the hosts that did not answer. When one answers again, the run saves its
    /// step and is restarted with it. 0 checks them only before the next start
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    ask_every: u64,
    /// Start without checking whether the hosts answer, have the program and reach each other
    #[arg(long)]
    no_ask: bool,
    /// Program that runs a command on another host
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    ssh: String,
    /// Argument for mpirun itself, such as --mpirun=--oversubscribe. Repeat the flag for several
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mpirun: Vec<String>,
    /// The program and its flags, including --out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<String>,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|arg| arg == answer::ANSWER) {
        return if answer::answer().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
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
    let asked = Asked::new()?;
    let restarts = flags.retries > 0 || flags.ask_every > 0;
    if restarts && out(&flags.program).is_none() {
        return Err(
            "the program has no --out DIR, without which it cannot be restarted: add it behind --, or \
                    start it only once with --retries 0 --ask-every 0"
                .into(),
        );
    }
    let resumes = flags.program.iter().any(|arg| arg == "--resume");
    // The program refuses that too, unless it ends before it can: the next start would then resume that run.
    if let Some(dir) = out(&flags.program).filter(|dir| !resumes && holds_checkpoints(dir)) {
        let dir = dir.display();
        return Err(format!(
            "--out {dir}: holds the checkpoints of an earlier run: add --resume, or remove it"
        ));
    }
    let (mut failed, mut starts) = (0, 0);
    let mut pause = Duration::from_secs(flags.pause);
    loop {
        let Some(plan) = choose(flags, &asked, starts == 0)? else { return Ok(asked.code().unwrap_or(1)) };
        starts += 1;
        let since = Instant::now();
        let ended = start(flags, &asked, &plan, (starts, starts > 1 && !resumes));
        if let Some(code) = asked.code() {
            return Ok(match ended? {
                Ended::Status(status)
                    if ASKING.iter().any(|signal| code_of(status) == SIGNALLED + signal) =>
                {
                    u8::try_from(code_of(status)).unwrap_or(code)
                }
                Ended::Status(status) if code_of(status) == 0 => 0,
                _ => code,
            });
        }
        let why = match ended? {
            Ended::Interrupted => {
                say!("relaunch: hosts answer again: the run is restarted with them");
                continue;
            }
            Ended::Hung(why) => why.to_owned(),
            Ended::Status(status) => {
                let code = code_of(status);
                // 137, with SIGKILL, is that of a rank that was killed.
                let is_asked = ASKING.iter().any(|signal| code == SIGNALLED + signal);
                if code == 0 || code == REFUSED || is_asked {
                    return Ok(u8::try_from(code).unwrap_or(1));
                }
                status.to_string()
            }
        };
        failed += 1;
        if failed > flags.retries {
            return Err(format!("the run failed {failed} times, the last time: {why}"));
        }
        say!("relaunch: the run failed ({why}): restarting it from its last checkpoint");
        // How long the run took, without the pause after it.
        let took = since.elapsed();
        asked.wait(pause);
        pause = next_pause(took, pause, Duration::from_secs(flags.pause));
    }
}

/// Returns the pause before the start after the next one: twice the last one behind a run that failed soon,
/// else the one that is `given`.
fn next_pause(took: Duration, last: Duration, given: Duration) -> Duration {
    if took < SOON { (2 * last).min(MOST_PAUSE.max(given)) } else { given }
}

/// Chooses the hosts of a start, and waits until enough of them answer. Returns `None` if it is asked to end
/// meanwhile. At the first start all hosts answer, unless fewer are asked for.
fn choose(flags: &Flags, asked: &Asked, is_first: bool) -> Result<Option<Plan>, String> {
    let question = question(flags);
    let since = Instant::now();
    let mut told = Vec::new();
    loop {
        if asked.code().is_some() {
            return Ok(None);
        }
        let plan = plan(&flags.hostfile, question.as_ref(), &flags.mpirun)?;
        let all = plan.hosts.len() + plan.left_out.len();
        let least = flags.min_hosts.unwrap_or(if is_first { all } else { 1 }).max(1);
        for (host, why) in &plan.left_out {
            let line = format!("{}: {why}", host.name);
            if !told.contains(&line) {
                say!("relaunch: {line}");
                told.push(line);
            }
        }
        if plan.hosts.len() >= least {
            return Ok(Some(plan));
        }
        let few = format!("{} of {all} hosts can be used, and {least} are needed", plan.hosts.len());
        if is_first {
            return Err(format!("{few}; --min-hosts N starts with fewer"));
        }
        if since.elapsed() >= Duration::from_secs(flags.wait) {
            return Err(format!("{few}, after {} s (--wait)", flags.wait));
        }
        asked.wait(AGAIN);
    }
}

/// Returns how hosts are asked, if they are.
fn question(flags: &Flags) -> Option<Question> {
    let program = flags.program.first().cloned().unwrap_or_default();
    (!flags.no_ask).then(|| Question { ssh: flags.ssh.clone(), program })
}

/// Starts the program on the hosts of a plan, and waits for its end. `start` has the number of the start, and
/// whether the program is to resume.
fn start(flags: &Flags, asked: &Asked, plan: &Plan, start: (u32, bool)) -> Result<Ended, String> {
    let ranks = ranks(&plan.hosts);
    plan.notes.iter().for_each(|note| say!("relaunch: {note}"));
    say!("relaunch: start {} on {ranks} ranks{}", start.0, names(plan));
    let hostfile = Written::new(&plan.hosts)?;
    let mut command = Command::new("mpirun");
    command.arg("--hostfile").arg(&hostfile.0).args(["-n", &ranks.to_string(), "--bind-to", "none"]);
    for (name, value) in
        settings(&flags.ssh, flags.start_deadline, &flags.mpirun).iter().chain(&plan.settings)
    {
        command.args(["--mca", name, value]);
    }
    command.args(&flags.mpirun).args(&flags.program);
    if start.1 {
        command.arg("--resume");
    }
    let named = ["--cluster-deadline", "--world-deadline"];
    let deadline = named.iter().find_map(|flag| value(&flags.program, flag)?.parse().ok());
    let deadline = Duration::from_secs(deadline.unwrap_or(CLUSTER_DEADLINE));
    let is_here = plan.hosts.iter().any(hostfile::Host::is_here);
    let every = Duration::from_secs(flags.ask_every);
    let watch = Watch::begin(
        question(flags).filter(|_| !every.is_zero()),
        (flags.hostfile.clone(), flags.mpirun.clone()),
        plan,
        (every, (!is_here).then(|| deadline + MOST_PAUSE)),
    );
    let start = Duration::from_secs(flags.start_deadline);
    let after = Duration::from_secs(flags.end_deadline);
    let limits = Limits { is_here, start, after, ending: deadline + MOST_PAUSE, watch: &watch };
    run(&mut command, asked, &limits).map_err(|error| format!("mpirun: {error}"))
}

/// Names the hosts of a plan, if hosts are left out.
fn names(plan: &Plan) -> String {
    if plan.left_out.is_empty() {
        return String::new();
    }
    let names = |hosts: &mut dyn Iterator<Item = &hostfile::Host>| -> String {
        hosts.map(|host| host.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let left_out = names(&mut plan.left_out.iter().map(|(host, _)| host));
    format!(" of {}, without {left_out}", names(&mut plan.hosts.iter()))
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

    /// Waits, unless this program is asked to end.
    fn wait(&self, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && self.code().is_none() {
            sleep(POLL);
        }
    }

    /// Passes a signal on that came since the last call.
    fn pass_on(&self, child: &Child) {
        let signal = self.next.swap(0, Ordering::SeqCst) as i32;
        if signal != 0 {
            mpirun::signal(child.id(), signal);
        }
    }
}

/// Returns the exit code of a program, as a shell gives it.
fn code_of(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return SIGNALLED + signal;
    }
    status.code().unwrap_or(1)
}

/// Returns the directory that a program is given with --out.
fn out(program: &[String]) -> Option<PathBuf> {
    value(program, "--out").map(PathBuf::from)
}

/// Returns the value of a program's flag.
fn value<'a>(program: &'a [String], flag: &str) -> Option<&'a str> {
    let next = |at: usize| program.get(at + 1).map(String::as_str);
    program.iter().enumerate().find_map(|(at, arg)| match arg.strip_prefix(flag)? {
        "" => next(at),
        rest => rest.strip_prefix('='),
    })
}

/// Returns whether there are checkpoints in a run's directory, of the first two ranks, on this machine.
fn holds_checkpoints(dir: &Path) -> bool {
    let holds =
        |rank| unisono::checkpoint::list(unisono::dir_of_rank(dir, rank)).is_ok_and(|all| !all.is_empty());
    holds(0) || holds(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_runs_fail_soon() {
        let seconds = Duration::from_secs;
        let mut pauses = vec![seconds(2)];
        while pauses.len() < 8 {
            pauses.extend(pauses.last().map(|last| next_pause(seconds(1), *last, seconds(2))));
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60].map(seconds));
        assert_eq!(next_pause(SOON, seconds(60), seconds(2)), seconds(2));
        // A longest pause that is shorter than the given one does not count.
        assert_eq!(next_pause(seconds(1), seconds(90), seconds(90)), seconds(90));
    }
}
