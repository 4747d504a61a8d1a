//! What Ctrl-C does: the first one finishes the step, saves and exits with 130, the second one stops at once.
//! SIGTERM does the same. SIGHUP is not handled, so that `nohup` works.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use unisono::Stop;

use crate::Error;

/// The exit code that a shell expects of a program that Ctrl-C ended.
pub(crate) const EXIT: u8 = 130;

/// The request to stop. It is global because signals belong to the process.
static STOP: OnceLock<Stop> = OnceLock::new();

/// The error of a run that ended before its last epoch because it was asked to.
#[derive(Debug)]
pub struct Interrupted {
    /// The number of steps done. All of them are saved if there is a directory.
    pub step: u64,
    /// The directory with the checkpoints, if there is one.
    pub out: Option<PathBuf>,
}

impl std::error::Error for Interrupted {}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted after step {}", self.step)?;
        match &self.out {
            Some(out) => write!(f, "; go on with --out {} --resume", out.display()),
            None => write!(f, "; nothing is saved without --out"),
        }
    }
}

/// Returns the request that Ctrl-C sets. The first call installs the handlers of the signals.
pub(crate) fn stop() -> Result<Stop, Error> {
    if let Some(stop) = STOP.get() {
        return Ok(stop.clone());
    }
    let stop = STOP.get_or_init(Stop::new).clone();
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the handler that exits on a set flag has to run before the handler that sets the
        // flag.
        flag::register_conditional_shutdown(signal, EXIT.into(), stop.flag())
            .and_then(|_| flag::register(signal, stop.flag()))
            .map_err(|error| format!("signal {signal} cannot be handled: {error}"))?;
    }
    Ok(stop)
}
