//! The thread behind a [`Saver`](crate::Saver), and what the two share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::saver::report::Report;
use crate::store::Store;
use crate::store::contents::Contents;
use crate::store::retention::Candidate;
use crate::tensors::error::{Error, Result, io};

/// A save that waits to be done.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) step: u64,
    pub(crate) contents: Contents,
    pub(crate) metric: Option<f64>,
    /// Whether retention will keep it. If so, its successor does not replace it.
    pub(crate) kept: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) waiting: Option<Job>,
    /// The failed saves to try again, oldest first: the last one that retention keeps, and the last one of
    /// all.
    pub(crate) failed: Vec<Job>,
    /// Whether to try the failed saves now.
    pub(crate) retry: bool,
    pub(crate) reports: Vec<Report>,
    /// The error that the next call returns.
    pub(crate) fatal: Option<Error>,
    /// The contents that were written last.
    pub(crate) spare: Contents,
    /// The best checkpoints so far.
    pub(crate) best: Vec<Candidate>,
    pub(crate) stopped: bool,
    writing: bool,
    closing: bool,
}

impl State {
    pub(crate) fn has_no_room(&self, every: bool) -> bool {
        self.waiting.as_ref().is_some_and(|job| every || job.kept)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.writing || self.retry || self.waiting.is_some()
    }

    /// Takes the saves to write now, oldest first: those that failed before, if retention keeps them or
    /// nothing newer waits, then the one that waits.
    fn take(&mut self) -> Vec<Job> {
        self.retry = false;
        let failed = std::mem::take(&mut self.failed).into_iter();
        let newer = self.waiting.take();
        let still = |job: &Job| newer.as_ref().is_none_or(|newer| job.kept && job.step < newer.step);
        let failed: Vec<Job> = failed.filter(still).collect();
        failed.into_iter().chain(newer).collect()
    }

    fn remember(&mut self, job: Job) {
        self.failed.retain(|earlier| earlier.kept && !job.kept);
        self.failed.push(job);
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) changed: Condvar,
    pub(crate) store: Mutex<Store>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as the condition holds and there is a thread to change it.
    pub(crate) fn wait_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waiting = self.changed.wait_while(self.lock(), |state| !state.stopped && condition(state));
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing thread. Dropping this ends the thread after it has tried all saves that it was given.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn start(store: Store, require: bool) -> Result<Self> {
        let dir = store.dir().to_owned();
        let best = store.candidates()?.into_iter().map(|(_, candidate)| candidate).collect();
        let state = Mutex::new(State { best, ..State::default() });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), store: Mutex::new(store) });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("checkpoints".into());
        let handle =
            thread.spawn(move || work(&theirs, require)).map_err(io(&dir, "start a thread to write"))?;
        Ok(Self { shared, handle: Some(handle) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(handle) = self.handle.take() {
            // The thread does not panic; if it does, that panic is not passed on to this thread.
            let _ = handle.join();
        }
    }
}

/// Lowers the thread's priority, so that writing gives way to training. If the processors are the device, a
/// step would otherwise wait for the processor that writes. Threads that this one starts, to hash and to
/// sync, inherit the priority.
#[cfg(target_os = "linux")]
fn give_way() {
    use rustix::process::{getpriority_process, setpriority_process};
    // On Linux a priority belongs to a thread. A higher number is a lower priority: ten steps leave about a
    // tenth of the time to this thread if others want all of it. If this fails, writing still works.
    let _ = getpriority_process(None).and_then(|own| setpriority_process(None, (own + 10).min(19)));
}

/// Does nothing: elsewhere a priority belongs to a whole process.
#[cfg(not(target_os = "linux"))]
fn give_way() {}

fn work(shared: &Shared, require: bool) {
    let _stopped = Stopped(shared);
    give_way();
    loop {
        let idle = |state: &mut State| state.waiting.is_none() && !state.retry && !state.closing;
        let waiting = shared.changed.wait_while(shared.lock(), idle);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        if state.waiting.is_none() && !state.retry {
            return;
        }
        let jobs = state.take();
        state.writing = true;
        shared.changed.notify_all();
        drop(state);
        for job in jobs {
            write(shared, job, require);
        }
        shared.lock().writing = false;
        shared.changed.notify_all();
    }
}

fn write(shared: &Shared, job: Job, require: bool) {
    let start = Instant::now();
    let mut store = shared.store.lock().unwrap_or_else(PoisonError::into_inner);
    let result = store.save_with_metric(job.step, &job.contents, job.metric);
    drop(store);
    let mut state = shared.lock();
    match result {
        Ok(saved) => {
            // An older checkpoint cannot be saved any more, because it would be found in place of this one.
            state.failed.retain(|failed| failed.step > job.step);
            state.reports.push(Report::Saved { step: job.step, saved, took: start.elapsed() });
            state.spare = job.contents;
        }
        Err(error) => {
            let may_pass = error.may_pass();
            if may_pass && !require {
                state.reports.push(Report::Failed { step: job.step, error });
            } else {
                state.fatal = Some(error);
            }
            if may_pass {
                state.remember(job);
            }
        }
    }
}

/// Wakes those who wait when the thread ends, also if it panics.
struct Stopped<'a>(&'a Shared);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_all();
    }
}
