//! Saving behind the training thread.
//!
//! One thread owns the store and writes one checkpoint at a time. Between it and the training thread is a
//! place where one checkpoint can wait:
//!
//! ```text
//! save(): the place is free, or what waits may be replaced -->  waits  --the thread is free-->  is written
//!                                                                              an error that may pass |
//!         the next save, flush() or finish()  <--  is kept for another attempt  <--------------------'
//! ```
//!
//! What waits may be replaced by its successor unless retention will keep it (a milestone, one of the
//! best), or it was handed over with [`Saver::save_itself`]; then [`Saver::save`] waits for the place
//! instead. So a slow disk makes checkpoints rarer, never training slower. At most six checkpoints are in
//! memory: one that is being written, one that waits, one that was written and whose memory waits to be
//! filled again, and, when saving fails, the last that failed and two of those that may not be replaced.
//!
//! [`Saver::trust`] leaves a note for the thread and marks the saves that wait or are being written. The
//! thread first trusts what is complete, then writes, and trusts each marked save when it is complete. So a
//! save that is handed over later is not trusted by an earlier note, even if it has the same step.
//!
//! It cannot deadlock: the thread never waits for a caller while anything waits to be written, callers wait
//! only while the thread has something to do, and neither holds the state's mutex while a file is written.

pub(crate) mod report;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::saver::report::Report;
use crate::saver::writer::{Job, State, Thread};
use crate::store::Store;
use crate::store::contents::Contents;
use crate::store::retention::{Candidate, Metric, Options};
use crate::tensors::error::{Error, Result};

/// Options of a [`Saver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SaverOptions {
    /// Whether a save that fails is an error of the next call. Otherwise it is a [`Report::Failed`] and tried
    /// again. Default: false.
    pub require: bool,
    /// Whether every save is written, so that one that finds another waiting waits too. Otherwise the disk's
    /// speed decides which checkpoints there are, but never what is in them. Default: false.
    pub write_every: bool,
}

impl SaverOptions {
    /// Sets whether a save that fails is an error of the next call.
    pub fn require(self, require: bool) -> Self {
        Self { require, ..self }
    }

    /// Sets whether every save is written.
    pub fn write_every(self, write_every: bool) -> Self {
        Self { write_every, ..self }
    }
}

/// Saves checkpoints on a thread of its own. Dropping it waits until it has tried to write what was handed
/// over.
#[derive(Debug)]
pub struct Saver {
    thread: Thread,
    options: SaverOptions,
    retention: Options,
}

impl Saver {
    /// Takes over a store and starts the thread.
    ///
    /// # Errors
    /// The checkpoints that are there cannot be listed, or the thread cannot be started.
    pub fn new(store: Store, options: SaverOptions) -> Result<Self> {
        let retention = store.options.clone();
        Ok(Self { thread: Thread::start(store, options.require)?, options, retention })
    }

    /// Hands a checkpoint over to the writing thread. One checkpoint can wait there to be written, and a
    /// newer one normally replaces it, so this returns at once. There are exceptions: the checkpoint that
    /// waits is not replaced if retention will keep it (a milestone, one of the best), if it was handed over
    /// with [`Saver::save_itself`], or with [`SaverOptions::write_every`]. Then this call waits until the
    /// writing of that checkpoint begins.
    ///
    /// # Errors
    /// That of an earlier save, and these contents are then not taken: any error if saves are required, else
    /// one that no later step mends, such as [`Error::Behind`]. [`Error::Stopped`] if the thread has ended.
    pub fn save(&self, step: u64, contents: Contents) -> Result<()> {
        self.save_with_metric(step, contents, None)
    }

    /// Saves as [`Saver::save`] does, with a metric for retention as [`Store::save_with_metric`] takes it.
    ///
    /// # Errors
    /// Those of [`Saver::save`].
    pub fn save_with_metric(&self, step: u64, contents: Contents, metric: Option<Metric>) -> Result<()> {
        self.hand_over(step, contents, metric, false)
    }

    /// Saves as [`Saver::save_with_metric`] does, but exactly this step. No later step replaces it while it
    /// waits, and it is tried again even after a later one has failed. If several such saves fail, the two
    /// that retention wants most are tried again. How long it is kept is decided as for any other.
    ///
    /// # Errors
    /// Those of [`Saver::save`].
    pub fn save_itself(&self, step: u64, contents: Contents, metric: Option<Metric>) -> Result<()> {
        self.hand_over(step, contents, metric, true)
    }

    fn hand_over(&self, step: u64, contents: Contents, metric: Option<Metric>, itself: bool) -> Result<()> {
        let mut state =
            self.thread.shared.wait_while(|s| s.fatal.is_none() && s.has_no_room(self.options.write_every));
        check(&mut state)?;
        let new = Candidate { step, metric: self.retention.rank(metric.as_ref()) };
        let kept = itself || self.retention.is_kept_for_long(new, &state.best);
        let best = self.retention.best_of(&[state.best.as_slice(), &[new]].concat());
        state.best.push(new);
        state.best.retain(|candidate| best.contains(&candidate.step));
        let is_milestone = self.retention.is_milestone(step);
        let job = Job { step, contents, metric, candidate: new, kept, is_milestone, audited: false };
        if let Some(old) = state.waiting.replace(job) {
            state.reports.push(Report::Replaced { step: old.step, by: step });
        }
        self.thread.shared.changed.notify_all();
        Ok(())
    }

    /// Notes that an audit has passed: the checkpoints of steps up to `upto` that were handed over before
    /// this call are trusted as soon as they are complete, as [`Store::trust`] says. Returns at once.
    ///
    /// If that cannot be recorded, it is a [`Report::NotTrusted`] and tried again with the next save, flush
    /// or call of this.
    pub fn trust(&self, upto: u64) {
        self.thread.shared.lock().trust(upto);
        self.thread.shared.changed.notify_all();
    }

    /// Notes that an audit has failed: the checkpoints of steps later than `after` are renamed, as
    /// [`Store::distrust`] says, and saves of such steps that wait, or have failed, are given up. Waits until
    /// nothing is being written.
    ///
    /// # Errors
    /// Those of [`Store::distrust`].
    pub fn distrust(&self, after: u64) -> Result<Vec<PathBuf>> {
        self.thread.shared.lock().drop_later(after);
        self.with_store(|store| {
            // A save that was being written may have failed meanwhile.
            self.thread.shared.lock().drop_later(after);
            store.distrust(after)
        })
    }

    /// Returns contents that were written and are no longer needed, so that their memory can be filled again.
    /// Without any, they are empty.
    pub fn spare(&self) -> Contents {
        std::mem::take(&mut self.thread.shared.lock().spare)
    }

    /// Returns what became of earlier saves, each once.
    ///
    /// # Errors
    /// Those of [`Saver::save`]; the reports then come with the next call.
    pub fn poll(&self) -> Result<Vec<Report>> {
        let mut state = self.thread.shared.lock();
        check(&mut state)?;
        Ok(std::mem::take(&mut state.reports))
    }

    /// Waits until all that was handed over has been written, tries once more what failed, and returns the
    /// reports.
    ///
    /// # Errors
    /// Those of [`Saver::poll`].
    pub fn flush(&self) -> Result<Vec<Report>> {
        drop(self.when_idle());
        let mut state = self.thread.shared.lock();
        state.retry = !state.failed.is_empty() || state.trust_again.is_some();
        self.thread.shared.changed.notify_all();
        drop(state);
        drop(self.when_idle());
        self.poll()
    }

    /// Waits until nothing is being written and runs `f` with the store, for example to look for the newest
    /// checkpoint or to write the model.
    pub fn with_store<T>(&self, f: impl FnOnce(&mut Store) -> T) -> T {
        drop(self.when_idle());
        let mut store = self.thread.shared.store.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut store);
        // `f` may have cleared the directory. If it cannot be listed, the record of the best stays as it was.
        if let Ok(found) = store.readable() {
            let mut state = self.thread.shared.lock();
            let unsaved = state.failed.iter().chain(&state.waiting).map(|job| job.candidate);
            let all: Vec<Candidate> = found.into_iter().map(|found| found.candidate).chain(unsaved).collect();
            let best = self.retention.best_of(&all);
            state.best = all.into_iter().filter(|candidate| best.contains(&candidate.step)).collect();
        }
        result
    }

    /// Flushes as [`Saver::flush`] does, and returns the store. What was handed over and did not fail is then
    /// durable.
    ///
    /// # Errors
    /// Those of [`Saver::poll`].
    pub fn finish(self) -> Result<(Store, Vec<Report>)> {
        let reports = self.flush()?;
        let shared = Arc::clone(&self.thread.shared);
        drop(self);
        let shared = Arc::into_inner(shared).ok_or(Error::Stopped)?;
        Ok((shared.store.into_inner().unwrap_or_else(PoisonError::into_inner), reports))
    }

    fn when_idle(&self) -> MutexGuard<'_, State> {
        self.thread.shared.wait_while(State::is_busy)
    }
}

/// Takes the error that there is to report.
fn check(state: &mut State) -> Result<()> {
    match state.fatal.take() {
        Some(error) => Err(error),
        None if state.stopped => Err(Error::Stopped),
        None => Ok(()),
    }
}
