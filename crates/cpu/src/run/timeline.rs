//! The order of what was submitted: one thread runs all commands, one after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::memory::Memory;
use super::pool::{Launch, Pool};

/// A command.
#[derive(Debug)]
pub(crate) enum Command {
    Copy { from: Arc<Memory>, from_at: u64, to: Arc<Memory>, to_at: u64, bytes: u64 },
    Clear { to: Arc<Memory>, at: u64, bytes: u64 },
    Launch(Launch),
    /// Writes the time, in nanoseconds.
    Stamp { to: Arc<[AtomicU64]>, at: u32 },
    /// Copies times to a buffer.
    Fetch { from: Arc<[AtomicU64]>, first: u32, count: u32, to: Arc<Memory>, at: u64 },
}

/// What is called when a submission is done.
type Callback = Box<dyn FnOnce() + Send>;

/// What was submitted and what of it is done.
pub(crate) struct Timeline {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

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
    ended: bool,
}

impl std::fmt::Debug for Timeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timeline")
    }
}

impl Shared {
    fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timeline {
    /// Starts the thread, and so many beside it. `begin` is called on each.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn new(threads: usize, begin: fn()) -> std::io::Result<Self> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { state, work: Condvar::new(), done: Condvar::new() });
        let own = Arc::clone(&shared);
        let run = move || {
            begin();
            own.run(&Pool::new(threads.saturating_sub(1), begin));
        };
        let thread = std::thread::Builder::new().name("unisono-cpu 0".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Submits commands. Returns their number.
    pub fn submit(&self, commands: Vec<Command>) -> u64 {
        let mut state = self.shared.hold();
        state.submitted += 1;
        let number = state.submitted;
        state.waiting.push_back((number, commands));
        drop(state);
        self.shared.work.notify_one();
        number
    }

    /// Calls this in a poll once all that was submitted so far is done.
    pub fn afterwards(&self, callback: Callback) {
        let mut state = self.shared.hold();
        let number = state.submitted;
        state.callbacks.push((number, callback));
    }

    /// Waits for a submission, or for all of them, and calls what waits for what is done. Returns whether all
    /// is done, or `None` if the time is up first.
    pub fn wait(&self, number: Option<u64>, timeout: Option<Duration>) -> Option<bool> {
        let start = Instant::now();
        let mut state = self.shared.hold();
        let wanted = number.unwrap_or(state.submitted).min(state.submitted);
        while state.completed < wanted {
            match timeout {
                None => state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
                    else {
                        break;
                    };
                    let waited = self.shared.done.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        let completed = state.completed;
        let all = std::mem::take(&mut state.callbacks);
        let (ready, later) = all.into_iter().partition(|(number, _)| *number <= completed);
        state.callbacks = later;
        let is_empty = completed == state.submitted;
        drop(state);
        let ready: Vec<(u64, Callback)> = ready;
        ready.into_iter().for_each(|(_, callback)| callback());
        (completed >= wanted).then_some(is_empty)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.shared.hold().ended = true;
        self.shared.work.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Runs what is submitted, until the timeline ends and all is done.
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
                command.run(pool, begin);
            }
            self.hold().completed = number;
            self.done.notify_all();
        }
    }
}

impl Command {
    #[expect(unsafe_code, reason = "buffers are memory without an owner")]
    fn run(self, pool: &Pool, begin: Instant) {
        match self {
            Self::Copy { from, from_at, to, to_at, bytes } => {
                // SAFETY: the encoder has checked that both hold the bytes, and nothing else runs.
                unsafe { std::ptr::copy(from.at(from_at), to.at(to_at), bytes as usize) };
            }
            Self::Clear { to, at, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to.at(at), 0, bytes as usize) };
            }
            Self::Launch(launch) => pool.run(&launch),
            Self::Stamp { to, at } => {
                if let Some(place) = to.get(at as usize) {
                    place.store(begin.elapsed().as_nanos() as u64 + 1, Ordering::Relaxed);
                }
            }
            Self::Fetch { from, first, count, to, at } => {
                for number in 0..count {
                    let time = from.get((first + number) as usize);
                    let time = time.map_or(0, |time| time.load(Ordering::Relaxed)).to_le_bytes();
                    let place = to.at(at + 8 * u64::from(number));
                    // SAFETY: the encoder has checked that the buffer holds all of them.
                    unsafe { std::ptr::copy_nonoverlapping(time.as_ptr(), place, 8) };
                }
            }
        }
    }
}
