//! A run of a log directory: a directory with one stream of events, over all of its files.

use std::io::Result;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::observe::tensorboard::summary::{self, Summary};
use crate::observe::tensorboard::writer::{self, Writer, now};
use crate::protobuf::Message;

/// How long nothing is written after the first failure, and how often it is looked whether the file is there.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest time for which nothing is written. Each failure in a row doubles the time up to it.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// A run of a log directory. Its file is created when there is something to write.
pub(crate) struct Run {
    dir: PathBuf,
    writer: Option<Writer>,
    /// The first step that is made again, if readers have to be told.
    purge: Option<u64>,
    /// Until when nothing is written, because something could not be, unless [`Run::retry`] comes first.
    off_until: Option<Instant>,
    /// How long nothing is written after the next failure.
    pause: Duration,
    /// When it was seen last that the file is at its path.
    seen: Instant,
    /// Whether a problem was told since the run was last written.
    has_told: bool,
    problem: Option<String>,
}

impl Run {
    /// Creates a run in a directory.
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            writer: None,
            purge: None,
            off_until: None,
            pause: FIRST_PAUSE,
            seen: Instant::now(),
            has_told: false,
            problem: None,
        }
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
        if self.is_off() {
            return;
        }
        let seconds = now();
        self.write_event(&summary(seconds).at(step, seconds));
    }

    /// Writes an event that was made before.
    pub fn write_event(&mut self, event: &Message) {
        if !self.is_off() {
            let result = self.open().and_then(|writer| writer.write(event));
            self.keep(result);
        }
    }

    /// Writes again after a failure, to a new file.
    pub fn retry(&mut self) {
        self.off_until = None;
    }

    fn is_off(&self) -> bool {
        self.off_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns why the run is not written, once until it is written again.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Looks now and then whether the file is there, so that no run writes into one that nobody can find.
    fn look(&mut self) {
        if self.seen.elapsed() < FIRST_PAUSE {
            return;
        }
        self.seen = Instant::now();
        if let Some(gone) = self.writer.take_if(|writer| !writer.is_there()) {
            let path = gone.path().display();
            self.notify(format!("warning: the events of {path} are gone; a new file has those that come"));
        }
    }

    fn notify(&mut self, problem: String) {
        self.problem = Some(match self.problem.take() {
            Some(before) => format!("{before}; {problem}"),
            None => problem,
        });
    }

    fn open(&mut self) -> Result<&mut Writer> {
        self.look();
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
            (self.off_until, self.pause) = (None, FIRST_PAUSE);
            return;
        };
        // A record may be torn, so what comes later goes to a file of its own.
        self.writer = None;
        self.off_until = Some(Instant::now() + self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        if !std::mem::replace(&mut self.has_told, true) {
            let dir = self.dir.display();
            self.notify(format!("warning: events are not written to {dir}: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn event(run: &mut Run, step: u64) -> Option<String> {
        run.write(step, Summary::default().scalar("loss", 1.0));
        run.take_problem()
    }

    /// What comes when the pause is over is written, without an epoch's end.
    #[test]
    fn a_run_that_could_not_be_written_is_tried_again_after_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train");
        fs::write(&path, "in the way").unwrap();
        let mut run = Run::new(path.clone());
        assert!(event(&mut run, 1).unwrap().contains("events are not written to"));
        assert_eq!((event(&mut run, 2), run.pause), (None, FIRST_PAUSE * 2));
        // The pause of the failure is over, and so is that of the next one, which lasts longer.
        run.off_until = run.off_until.map(|until| until - FIRST_PAUSE);
        assert_eq!((event(&mut run, 3), run.pause), (None, FIRST_PAUSE * 4));
        fs::remove_file(&path).unwrap();
        run.off_until = run.off_until.map(|until| until - FIRST_PAUSE);
        assert_eq!((event(&mut run, 4), run.has_events()), (None, false));
        run.off_until = run.off_until.map(|until| until - FIRST_PAUSE);
        assert_eq!((event(&mut run, 5), run.has_events()), (None, true));
        assert_eq!((run.off_until, run.pause), (None, FIRST_PAUSE));
    }

    #[test]
    fn a_file_that_went_away_is_told_and_another_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train");
        let mut run = Run::new(path.clone());
        assert_eq!(event(&mut run, 1), None);
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(event(&mut run, 2), None, "it is not looked at each event");
        run.seen -= FIRST_PAUSE;
        let problem = event(&mut run, 3).unwrap();
        assert!(problem.contains("are gone; a new file has those that come"), "{problem}");
        assert!(writer::has_events(&path));
        run.seen -= FIRST_PAUSE;
        assert_eq!(event(&mut run, 4), None);
    }
}
