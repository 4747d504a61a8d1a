//! A run of mpirun, which is ended where it does not end by itself.

use std::io::{self, IsTerminal, stdin};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Asked;
use crate::watch::Watch;

/// The time between two looks at mpirun and at the signals.
const POLL: Duration = Duration::from_millis(50);
/// The time between two looks at the ranks of this machine.
const LOOK: Duration = Duration::from_secs(1);
/// How long mpirun may take to end after it is asked to.
const ENDING: Duration = Duration::from_secs(10);

/// How a run has ended.
#[derive(Debug)]
pub enum Ended {
    /// mpirun has ended.
    Status(ExitStatus),
    /// mpirun did not end, or did not start the program, and was ended.
    Hung(&'static str),
    /// The run was asked to end, to begin again with more hosts.
    Interrupted,
}

/// What ends a run beside its own end.
pub struct Limits<'a> {
    /// Whether mpirun starts ranks on this machine, at which their end is seen.
    pub is_here: bool,
    /// How long mpirun may take until the ranks of this machine run.
    pub start: Duration,
    /// How long mpirun may take to end after all ranks of this machine have.
    pub after: Duration,
    /// How long the ranks may take to end after they are asked to.
    pub ending: Duration,
    /// What the hosts say meanwhile.
    pub watch: &'a Watch,
}

/// Runs a command to its end, with the signals that ask it to end.
pub fn run(command: &mut Command, asked: &Asked, limits: &Limits<'_>) -> io::Result<Ended> {
    // Ctrl-C at a terminal signals the whole group of processes there. What asks once is to arrive once: the
    // second signal ends mpirun at once.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    // In a group of its own, mpirun would be stopped when it reads from the terminal.
    if stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn()?;
    let (began, mut looked) = (Instant::now(), Instant::now());
    let (mut seen, mut none_since, mut interrupted) = (false, None, None::<Instant>);
    loop {
        if let Some(status) = child.try_wait()? {
            let more = interrupted.is_some() && !status.success();
            return Ok(if more { Ended::Interrupted } else { Ended::Status(status) });
        }
        asked.pass_on(&child);
        sleep(POLL);
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        let ranks = ranks_of(&child);
        seen |= !ranks.is_empty();
        none_since = if ranks.is_empty() { none_since.or(Some(looked)) } else { None };
        let hung = match none_since {
            Some(since) if seen && since.elapsed() > limits.after => {
                Some("mpirun did not end after its ranks")
            }
            Some(_) if limits.watch.is_lost() => Some("a host does not answer any more"),
            Some(_) if limits.is_here && !seen && began.elapsed() > limits.start => {
                Some("mpirun did not start the program")
            }
            _ => None,
        };
        if let Some(why) = hung {
            // Open MPI 4 that waits for a lost host fails with a trace of its own when it is asked to end.
            end(&mut child, !seen)?;
            return Ok(if interrupted.is_some() { Ended::Interrupted } else { Ended::Hung(why) });
        }
        if interrupted.is_some_and(|since| since.elapsed() > limits.ending) {
            end(&mut child, true)?;
            return Ok(Ended::Interrupted);
        }
        if interrupted.is_none() && limits.watch.has_more() {
            // A rank that is asked has all finish the step and save it. mpirun would end them soon after.
            interrupted = Some(looked);
            signal(ranks.first().copied().unwrap_or(child.id()), 15);
        }
    }
}

/// Ends mpirun, at first by asking if that is of use, and then what it has started here and left behind, such
/// as ssh.
fn end(child: &mut Child, asks: bool) -> io::Result<()> {
    let started: Vec<_> =
        children_of(child).into_iter().map(|process| (process, start_of(process))).collect();
    if asks {
        signal(child.id(), 15);
    }
    let since = Instant::now();
    while asks && since.elapsed() < ENDING && child.try_wait()?.is_none() {
        sleep(POLL);
    }
    if child.try_wait()?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    for (process, start) in started {
        // Another process may have its number by now.
        if start.is_some() && start_of(process) == start {
            signal(process, 9);
        }
    }
    Ok(())
}

/// Returns when a process has started, in a unit of the system.
fn start_of(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Sends a signal to a process, which may have ended.
pub fn signal(process: u32, signal: i32) {
    #[cfg(unix)]
    if let Some((signal, pid)) =
        rustix::process::Signal::from_named_raw(signal).zip(rustix::process::Pid::from_raw(process as i32))
    {
        let _ = rustix::process::kill_process(pid, signal);
    }
    #[cfg(not(unix))]
    let _ = (process, signal);
}

/// Returns the ranks on this machine: the processes that mpirun has started with a rank's number.
fn ranks_of(mpirun: &Child) -> Vec<u32> {
    let is_rank = |process: &u32| {
        let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let of = |variable: &[u8]| variable.starts_with(b"OMPI_COMM_WORLD_RANK=");
        variables.split(|byte| *byte == 0).any(of)
    };
    children_of(mpirun).into_iter().filter(is_rank).collect()
}

/// Returns the processes that mpirun has started and that have not ended: its ranks on this machine, and ssh.
fn children_of(mpirun: &Child) -> Vec<u32> {
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the program's name in parentheses: the state and the parent.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut words = rest.split_whitespace();
        let state = words.next();
        state != Some("Z") && words.next().and_then(|parent| parent.parse().ok()) == Some(mpirun.id())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut children: Vec<u32> = numbers.filter(is_child).collect();
    children.sort_unstable();
    children
}
