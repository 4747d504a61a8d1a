//! The thread behind a [`Saver`](crate::Saver), and what the two share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::saver::report::Report;
use crate::store::Store;
use crate::store::contents::Contents;
use crate::store::retention::{Candidate, Metric};
use crate::tensors::error::{Error, Result, io};

/// The most failed saves that are kept to be tried again.
const KEPT: usize = 2;

/// A save that waits to be done.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) step: u64,
    pub(crate) contents: Contents,
    pub(crate) metric: Option<Metric>,
    /// The step with the metric as retention ranks it.
    pub(crate) candidate: Candidate,
    /// Whether retention will keep it, or it is to be saved itself. If so, its successor does not replace it.
    pub(crate) kept: bool,
    /// Whether retention keeps its step whatever was measured at it.
    pub(crate) is_milestone: bool,
    /// Whether an audit of its step has passed, so that it is trusted once it is complete.
    pub(crate) audited: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) waiting: Option<Job>,
    /// The failed saves to try again, oldest first: some of those that are kept, and the last one of all.
    pub(crate) failed: Vec<Job>,
    /// Whether to try the failed saves now.
    pub(crate) retry: bool,
    /// The step up to which the checkpoints that are complete are to be trusted.
    pub(crate) trust: Option<u64>,
    /// The step up to which checkpoints are to be trusted that were tried in vain.
    pub(crate) trust_again: Option<u64>,
    /// The step up to which the saves that are being written are to be trusted.
    pub(crate) trust_written: Option<u64>,
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
        self.writing || self.has_work()
    }

    fn has_work(&self) -> bool {
        self.waiting.is_some() || self.retry || self.trust.is_some()
    }

    /// Marks the saves that were handed over and are not complete, up to a step, as audited, and has those
    /// that are complete trusted.
    pub(crate) fn trust(&mut self, upto: u64) {
        for job in self.failed.iter_mut().chain(&mut self.waiting) {
            job.audited |= job.step <= upto;
        }
        self.trust_written = self.trust_written.max(Some(upto));
        self.trust = self.trust.max(Some(upto));
    }

    /// Drops the saves of later steps that are not being written.
    pub(crate) fn drop_later(&mut self, after: u64) {
        let mut dropped: Vec<u64> =
            self.failed.extract_if(.., |job| job.step > after).map(|job| job.step).collect();
        dropped.extend(self.waiting.take_if(|job| job.step > after).map(|job| job.step));
        self.reports.extend(dropped.into_iter().map(|step| Report::Dropped { step }));
        for trust in [&mut self.trust, &mut self.trust_again] {
            *trust = trust.map(|upto| upto.min(after));
        }
    }

    /// Takes the saves to write now, oldest first: those that failed before, if retention keeps them or
    /// nothing newer waits, then the one that waits. There are none if all that is asked for is trust.
    fn take(&mut self) -> Vec<Job> {
        if !std::mem::take(&mut self.retry) && self.waiting.is_none() {
            return Vec::new();
        }
        let failed = std::mem::take(&mut self.failed).into_iter();
        let newer = self.waiting.take();
        let still = |job: &Job| newer.as_ref().is_none_or(|newer| job.kept && job.step < newer.step);
        let failed: Vec<Job> = failed.filter(still).collect();
        failed.into_iter().chain(newer).collect()
    }

    /// Remembers a failed save to be tried again. Of more than [`KEPT`] that are kept, the first one is given
    /// up that is no milestone and not among the best any more, or else the oldest.
    fn remember(&mut self, job: Job) {
        let by = job.step;
        self.failed.retain(|earlier| earlier.kept);
        self.failed.push(job);
        let kept: Vec<usize> = (0..self.failed.len()).filter(|at| self.failed[*at].kept).collect();
        if kept.len() <= KEPT {
            return;
        }
        let is_wanted = |job: &Job| job.is_milestone || self.best.iter().any(|best| best.step == job.step);
        let given_up = kept.iter().find(|at| !is_wanted(&self.failed[**at])).unwrap_or(&kept[0]);
        let step = self.failed.remove(*given_up).step;
        // That the save itself has failed is reported already.
        if step != by {
            self.reports.push(Report::Replaced { step, by });
        }
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
        let best = store.readable()?.into_iter().map(|found| found.candidate).collect();
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

/// Lowers the thread's priority, so that writing gives way to training. If the CPUs are the device, a
/// step would otherwise wait for the CPU that writes. Threads that this one starts, to hash and to
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
        let idle = |state: &mut State| !state.has_work() && !state.closing;
        let waiting = shared.changed.wait_while(shared.lock(), idle);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        if !state.has_work() {
            return;
        }
        // What is trusted is what is complete now. A save that comes after it counts only if it is marked.
        let trust = state.trust.take().max(state.trust_again.take());
        state.trust_written = None;
        let jobs = state.take();
        state.writing = true;
        shared.changed.notify_all();
        drop(state);
        if let Some(upto) = trust {
            note_trust(shared, upto);
        }
        for job in jobs {
            write(shared, job, require);
        }
        shared.lock().writing = false;
        shared.changed.notify_all();
    }
}

fn write(shared: &Shared, mut job: Job, require: bool) {
    let start = Instant::now();
    let mut store = shared.store.lock().unwrap_or_else(PoisonError::into_inner);
    let result = store.save_with_metric(job.step, &job.contents, job.metric.as_ref());
    drop(store);
    let mut state = shared.lock();
    job.audited |= state.trust_written.is_some_and(|upto| job.step <= upto);
    let to_trust = (result.is_ok() && job.audited).then_some(job.step);
    match result {
        Ok(saved) => {
            // An older checkpoint cannot be saved any more, because it would be found in place of this one.
            state.failed.retain(|failed| failed.step > job.step);
            if !job.audited && state.trust_again >= Some(job.step) {
                // What was to be trusted under this step is replaced.
                state.trust_again = job.step.checked_sub(1);
            }
            state.reports.push(Report::Saved { step: job.step, saved, took: start.elapsed() });
            state.spare = job.contents;
        }
        Err(error) => {
            // What cannot be stored at one step may be at another, such as after the end of an epoch.
            let may_pass = error.may_pass() || matches!(error, Error::Unstorable { .. });
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
    drop(state);
    if let Some(step) = to_trust {
        note_trust(shared, step);
    }
}

/// Records that the complete checkpoints up to a step are trusted, or reports why not.
fn note_trust(shared: &Shared, upto: u64) {
    let mut store = shared.store.lock().unwrap_or_else(PoisonError::into_inner);
    let result = store.trust(upto);
    drop(store);
    let mut state = shared.lock();
    match result {
        Ok(_) => state.trust_again = state.trust_again.filter(|again| *again > upto),
        Err(error) => {
            state.trust_again = state.trust_again.max(Some(upto));
            state.reports.push(Report::NotTrusted { step: upto, error });
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
