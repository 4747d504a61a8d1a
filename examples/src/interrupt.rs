//! Signals that end a run. The first one finishes the step and saves, the second one ends the program at
//! once.
//!
//! | signal | sent by | exit code |
//! |---|---|---|
//! | SIGINT | Ctrl-C | 130 |
//! | SIGTERM | `kill`, batch systems, containers | 143 |
//! | SIGHUP | a terminal that closes | 129 |
//!
//! SIGHUP is left alone if it was ignored at the start, so that `nohup` works, and where the system does not
//! tell; it then ends the program at once or not at all.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use unisono::Stop;

use crate::Error;

/// A shell reports a program that a signal ended with this and the signal's number.
const SIGNALLED: i32 = 128;

/// The request to stop, and the signal that made it, 0 before. It is global because signals belong to the
/// process.
static REQUEST: OnceLock<(Stop, Arc<AtomicUsize>)> = OnceLock::new();

/// The error of a run that ended before its last epoch because it was asked to.
#[derive(Debug)]
pub struct Interrupted {
    /// The number of steps done. All of them are saved if there is a directory, unless `unsaved` says
    /// otherwise.
    pub step: u64,
    /// The directory with the checkpoints, if there is one.
    pub out: Option<PathBuf>,
    /// The step after which nothing is saved: a resumed run was asked to stop before its data were found to
    /// be those of the run.
    pub unsaved: Option<u64>,
}

impl std::error::Error for Interrupted {}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted after step {}", self.step)?;
        match (&self.out, self.unsaved) {
            (Some(out), None) => write!(f, "; go on with --out {} --resume", out.display()),
            (Some(out), Some(step)) => {
                let out = out.display();
                write!(
                    f,
                    "; the steps after step {step} are not saved: --out {out} --resume makes them again"
                )
            }
            (None, _) => write!(f, "; nothing is saved without --out"),
        }
    }
}

/// Returns the request that the signals set. The first call installs their handlers.
pub(crate) fn stop() -> Result<Stop, Error> {
    if let Some((stop, _)) = REQUEST.get() {
        return Ok(stop.clone());
    }
    let (stop, by) = REQUEST.get_or_init(Default::default);
    for signal in signals() {
        // The order matters: the handler that exits on a set flag has to run before the handler that sets the
        // flag, and who sees the flag has to see the signal too.
        flag::register_conditional_shutdown(signal, SIGNALLED + signal, stop.flag())
            .and_then(|_| flag::register_usize(signal, Arc::clone(by), signal as usize))
            .and_then(|_| flag::register(signal, stop.flag()))
            .map_err(|error| format!("signal {signal} cannot be handled: {error}"))?;
    }
    Ok(stop.clone())
}

/// Lets a write beyond the longest file that is allowed (`ulimit -f`) fail with an error that names the file.
/// The signal that comes with it would end the program without a word.
#[cfg(unix)]
pub(crate) fn survive_full_files() {
    // Without the handler the program ends as it would by default.
    let _ = flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Returns the exit code of a program whose run was interrupted: that of the signal which did it.
pub(crate) fn exit_code() -> u8 {
    let by = REQUEST.get().map_or(0, |(_, by)| by.load(Ordering::SeqCst) as i32);
    let by = if by == 0 { SIGINT } else { by };
    u8::try_from(SIGNALLED + by).unwrap_or(u8::MAX)
}

/// Returns the signals that end a run: SIGINT, SIGTERM, and SIGHUP unless it is ignored.
pub fn signals() -> Vec<i32> {
    let ends = vec![SIGINT, SIGTERM];
    #[cfg(unix)]
    if is_ignored(signal_hook::consts::SIGHUP) == Some(false) {
        return [ends, vec![signal_hook::consts::SIGHUP]].concat();
    }
    ends
}

/// Returns whether a signal is ignored, as `nohup` makes it for the programs that it starts, or `None` where
/// the system does not tell.
#[cfg(unix)]
fn is_ignored(signal: i32) -> Option<bool> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}
