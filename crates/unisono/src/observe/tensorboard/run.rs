//! A run of a log directory: a directory with one stream of events, over all of its files.

use std::io::Result;
use std::path::PathBuf;

use crate::observe::tensorboard::message::Message;
use crate::observe::tensorboard::summary::{self, Summary};
use crate::observe::tensorboard::writer::{self, Writer, now};

/// A run of a log directory. Its file is created when there is something to write.
pub(crate) struct Run {
    dir: PathBuf,
    writer: Option<Writer>,
    /// The first step that is made again, if readers have to be told.
    purge: Option<u64>,
    /// Whether nothing is written until [`Run::retry`], because something could not be.
    is_off: bool,
    /// Whether a problem was told since the run was last written.
    has_told: bool,
    problem: Option<String>,
}

impl Run {
    /// Creates a run in a directory.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, writer: None, purge: None, is_off: false, has_told: false, problem: None }
    }

    /// Returns whether the run has events, of this process or of an earlier one.
    pub fn has_events(&self) -> bool {
        self.writer.is_some() || writer::has_events(&self.dir)
    }

    /// Tells readers to drop what was written for the steps from `first` on. Nothing is written where there
    /// is nothing to drop.
    pub fn go_on(&mut self, first: u64) {
        if self.has_events() {
            self.purge = Some(first.min(self.purge.unwrap_or(u64::MAX)));
            self.retry();
            let result = self.open().map(drop);
            self.keep(result);
        }
    }

    /// Writes values of a step.
    pub fn write(&mut self, step: u64, summary: Summary) {
        self.write_at(step, |_| summary);
    }

    /// Writes values of a step that depend on the time, in seconds since 1970.
    pub fn write_at(&mut self, step: u64, summary: impl FnOnce(f64) -> Summary) {
        if self.is_off {
            return;
        }
        let seconds = now();
        self.write_event(&summary(seconds).at(step, seconds));
    }

    /// Writes an event that was made before.
    pub fn write_event(&mut self, event: &Message) {
        if !self.is_off {
            let result = self.open().and_then(|writer| writer.write(event));
            self.keep(result);
        }
    }

    /// Writes again after a failure, to a new file.
    pub fn retry(&mut self) {
        self.is_off = false;
    }

    /// Returns why the run is not written, once until it is written again.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    fn open(&mut self) -> Result<&mut Writer> {
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => Writer::create(&self.dir)?,
        };
        if let Some(first) = self.purge {
            writer.write(&summary::purge(first, now()))?;
            self.purge = None;
        }
        Ok(self.writer.insert(writer))
    }

    fn keep(&mut self, result: Result<()>) {
        let Err(error) = result else {
            self.has_told = false;
            return;
        };
        // A record may be torn, so what comes later goes to a file of its own.
        self.writer = None;
        self.is_off = true;
        if !std::mem::replace(&mut self.has_told, true) {
            let dir = self.dir.display();
            self.problem = Some(format!("warning: events are not written to {dir}: {error}"));
        }
    }
}
