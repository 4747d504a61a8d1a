//! The order of what was submitted: one thread runs all commands, one after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::command::Command;
use super::memory::{Memory, Owner};
use super::pool::Pool;

/// The bytes of the stack of a thread: more than any kernel takes.
pub(super) const STACK: usize = 1 << 20;

/// What is called when a submission is done, or never will be.
type Callback = Box<dyn FnOnce(bool) + Send>;

/// What was submitted and what of it is done, and the thread that does it.
pub(crate) struct Timeline {
    progress: Progress,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What was submitted and what of it is done.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Tells the thread of work.
    work: Condvar,
    /// Tells others that something is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(u64, Vec<Command>)>,
    submitted: u64,
    completed: u64,
    callbacks: Vec<(u64, Callback)>,
    /// Whether nothing more will be submitted.
    ended: bool,
    /// Whether nothing more will be done.
    is_dead: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// What was waited for is done, and so is all else.
    Empty,
    /// What was waited for is done.
    Done,
    /// The time was up first.
    Timeout,
    /// It never will be done.
    Dead,
}

impl std::fmt::Debug for Timeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timeline")
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

impl Shared {
    fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Calls this in a poll once all that was submitted so far is done. If nothing more will be done, it is
    /// called here.
    pub fn afterwards(&self, callback: impl FnOnce(bool) + Send + 'static) {
        self.after(|| (), |(), is_done| callback(is_done));
    }

    /// Asks for memory on behalf of the host, and calls this in a poll once all that was submitted so far is
    /// done, with whether the host has the memory. Commands that use it are refused from now on.
    pub fn map(&self, memory: Arc<Memory>, callback: impl FnOnce(bool) + Send + 'static) {
        let asked = Arc::clone(&memory);
        self.after(move || asked.ask(false), move |number, is_done| callback(is_done && memory.give(number)));
    }

    /// Calls `first` now and `callback` with what it returned afterwards. Nothing is submitted in between.
    fn after<T: Send + 'static>(
        &self,
        first: impl FnOnce() -> T,
        callback: impl FnOnce(T, bool) + Send + 'static,
    ) {
        let mut state = self.0.hold();
        let (number, found) = (state.submitted, first());
        if !state.ended {
            state.callbacks.push((number, Box::new(move |is_done| callback(found, is_done))));
            return;
        }
        drop(state);
        callback(found, false);
    }
}

impl Timeline {
    /// Starts the thread, and so many beside it. `begin` is called on each.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn new(threads: usize, begin: fn()) -> std::io::Result<Self> {
        let progress = Progress(Arc::default());
        let own = Ends(Arc::clone(&progress.0));
        let run = move || {
            begin();
            own.0.run(&Pool::new(threads.saturating_sub(1), begin));
        };
        let thread =
            std::thread::Builder::new().name("unisono-cpu 0".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(Self { progress, thread: Mutex::new(Some(thread)) })
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Submits writes, and behind them commands, which run all or not at all. What uses memory that is not
    /// the device's is left out: a write, or all commands. Returns the number of the submission, and whose
    /// memory kept something from running that should have run. (A write to what was destroyed since need
    /// not.)
    pub fn submit(&self, mut writes: Vec<Command>, mut commands: Vec<Command>) -> (u64, Option<Owner>) {
        let mut refused = None;
        // Whoever asks for memory holds the state too, so no map comes between this look and the submission.
        let mut state = self.progress.0.hold();
        writes.retain(|write| {
            let owner = write.owner();
            refused = Some(owner).filter(|owner| *owner == Owner::Host).or(refused);
            owner == Owner::Device
        });
        let other = commands.iter().map(Command::owner).find(|owner| *owner != Owner::Device);
        let left_out = if other.is_some() { std::mem::take(&mut commands) } else { Vec::new() };
        writes.append(&mut commands);
        state.submitted += 1;
        let number = state.submitted;
        if !state.is_dead {
            state.waiting.push_back((number, writes));
        }
        drop(state);
        drop(left_out);
        self.progress.0.work.notify_one();
        (number, other.or(refused))
    }

    /// Waits for a submission, or for all of them, and calls what waits for what is done.
    pub fn wait(&self, number: Option<u64>, timeout: Option<Duration>) -> Waited {
        let start = Instant::now();
        let shared = &self.progress.0;
        let mut state = shared.hold();
        let wanted = number.unwrap_or(state.submitted).min(state.submitted);
        while state.completed < wanted && !state.is_dead {
            match timeout {
                None => state = shared.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
                    else {
                        break;
                    };
                    let waited = shared.done.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        let (completed, is_dead) = (state.completed, state.is_dead);
        let all = std::mem::take(&mut state.callbacks);
        let is_ready = |(number, _): &(u64, Callback)| *number <= completed || is_dead;
        let (ready, later): (Vec<_>, Vec<_>) = all.into_iter().partition(is_ready);
        state.callbacks = later;
        let is_empty = completed == state.submitted;
        drop(state);
        for (number, callback) in ready {
            callback(number <= completed);
        }
        match (completed >= wanted, is_dead) {
            (_, true) => Waited::Dead,
            (true, _) if is_empty => Waited::Empty,
            (true, _) => Waited::Done,
            (false, _) => Waited::Timeout,
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // Callbacks may hold buffers, and these the list of callbacks: so none is added any more.
        let callbacks = {
            let mut state = self.progress.0.hold();
            state.ended = true;
            std::mem::take(&mut state.callbacks)
        };
        self.progress.0.work.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let completed = self.progress.0.hold().completed;
        for (number, callback) in callbacks {
            callback(number <= completed);
        }
    }
}

/// Tells of the end of the thread, whatever ended it.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.hold();
            state.is_dead = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.0.done.notify_all();
    }
}

impl Shared {
    /// Runs what is submitted, until the timeline ends and all is done, or a launch cannot be run.
    fn run(&self, pool: &Pool) {
        let begin = Instant::now();
        loop {
            let mut state = self.hold();
            let (number, commands) = loop {
                if let Some(next) = state.waiting.pop_front() {
                    break next;
                }
                if state.ended {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            for command in commands {
                if !command.run(pool, begin) {
                    return;
                }
            }
            self.hold().completed = number;
            self.done.notify_all();
        }
    }
}
