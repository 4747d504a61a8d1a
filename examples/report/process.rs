//! Runs a part in a process of its own, with a time limit and its output in files.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use unisono::checkpoint::check_replaceable;

/// How often it is looked whether a part has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It exited with 0.
    Well,
    /// It exited with another code, or a signal ended it.
    Failed,
    /// It was killed at its time limit.
    TimedOut,
    /// Its process could not be started, or its output could not be kept.
    NotStarted,
    /// It was not run.
    LeftOut,
}

/// What became of a part.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// How long it took.
    pub took: Duration,
    /// What it wrote to standard output.
    pub output: String,
    /// What it wrote to standard error.
    pub errors: String,
}

impl Ran {
    /// Returns the last line of standard error that is not empty, or else of standard output.
    pub fn last_line(&self) -> &str {
        let last = |text: &'_ str| text.lines().rev().map(str::trim).find(|line| !line.is_empty()).is_some();
        let text = if last(&self.errors) { &self.errors } else { &self.output };
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

/// Creates a file that replaces what is there: a regular file, or a link, which is not followed.
fn anew(path: &Path) -> io::Result<File> {
    check_replaceable(path).map_err(io::Error::other)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// Runs a command. Its output goes to NAME.out and NAME.err in the directory.
pub fn run(command: &mut Command, dir: &Path, name: &str, limit: Duration) -> io::Result<Ran> {
    let [out, err] = ["out", "err"].map(|end| dir.join(format!("{name}.{end}")));
    command.stdin(Stdio::null()).stdout(anew(&out)?).stderr(anew(&err)?);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let began = Instant::now();
    let mut child = command.spawn()?;
    let ended = loop {
        match child.try_wait()? {
            Some(status) if status.success() => break Ended::Well,
            Some(_) => break Ended::Failed,
            None if began.elapsed() >= limit => {
                end(&mut child);
                break Ended::TimedOut;
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    let text = |path: &Path| Ok::<_, io::Error>(String::from_utf8_lossy(&fs::read(path)?).into_owned());
    Ok(Ran { ended, took: began.elapsed(), output: text(&out)?, errors: text(&err)? })
}

/// Kills a part with all processes that it has started.
fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // It may have ended in between.
    let _ = child.kill();
    let _ = child.wait();
}
