//! Ctrl-C: the first finishes the step, saves and exits with 130; the second stops at once. SIGTERM is the
//! same; SIGHUP is left to `nohup`.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use unisono::Stop;

use crate::Error;

/// What a shell expects of a program that Ctrl-C ended.
pub(crate) const EXIT: u8 = 130;

/// Signals are the process's, and so is this.
static STOP: OnceLock<Stop> = OnceLock::new();

/// A run ended before its last epoch because it was asked to.
#[derive(Debug)]
pub struct Interrupted {
    /// Steps done, all of them saved if there is a directory.
    pub step: u64,
    /// Where they are saved.
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

/// What Ctrl-C asks, from the first call on.
pub(crate) fn stop() -> Result<Stop, Error> {
    if let Some(stop) = STOP.get() {
        return Ok(stop.clone());
    }
    let stop = STOP.get_or_init(Stop::new).clone();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first sets the flag that makes the second exit.
        flag::register_conditional_shutdown(signal, EXIT.into(), stop.flag())
            .and_then(|_| flag::register(signal, stop.flag()))
            .map_err(|error| format!("signal {signal} cannot be handled: {error}"))?;
    }
    Ok(stop)
}
