//! The threads that share the workgroups of a launch. Which of them computes which workgroup depends on their
//! speed, and no result does.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::launch::Launch;
use super::timeline::STACK;

/// How long a thread looks for the next launch before it sleeps: launches of a step follow one another at
/// once.
const PATIENCE: Duration = Duration::from_micros(50);

/// The pieces into which the workgroups of a launch are divided for each thread.
const PIECES: u32 = 8;

/// A launch that threads share.
#[derive(Debug)]
struct Shared {
    launch: Launch,
    total: u64,
    piece: u64,
    next: AtomicU64,
    done: AtomicU64,
    /// Whether a workgroup could not be run.
    failed: AtomicBool,
}

impl Shared {
    /// Computes pieces until none is left.
    fn work(&self) {
        loop {
            let first = self.next.fetch_add(self.piece, Ordering::Relaxed);
            if first >= self.total {
                return;
            }
            let end = (first + self.piece).min(self.total);
            if self.launch.run(first..end) < end {
                self.failed.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(end - first, Ordering::Release);
        }
    }
}

/// The threads beside the one that launches.
#[derive(Debug)]
pub(crate) struct Pool {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// Where launches are announced.
#[derive(Debug, Default)]
struct Board {
    /// Counts the launches.
    number: AtomicU64,
    sleeping: AtomicU32,
    ended: AtomicBool,
    newest: Mutex<Option<Arc<Shared>>>,
    news: Condvar,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts so many threads beside this one. `begin` is called on each.
    pub fn new(helpers: usize, begin: fn()) -> Self {
        let board = Arc::new(Board::default());
        let start = |at: usize| {
            let board = Arc::clone(&board);
            let work = move || {
                begin();
                board.help();
            };
            let name = format!("unisono-cpu {}", at + 1);
            std::thread::Builder::new().name(name).stack_size(STACK).spawn(work).ok()
        };
        let helpers = (0..helpers).filter_map(start).collect();
        Self { board, helpers }
    }

    /// Computes a launch. Returns whether it could be computed.
    pub fn run(&self, launch: &Launch) -> bool {
        let total = launch.total();
        if total <= 1 || self.helpers.is_empty() {
            return launch.run(0..total) == total;
        }
        let threads = self.helpers.len() as u64 + 1;
        let piece = (total / (threads * u64::from(PIECES))).max(1);
        let (next, done, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { launch: launch.clone(), total, piece, next, done, failed });
        self.board.announce(&shared);
        shared.work();
        let mut turns = 0u32;
        while shared.done.load(Ordering::Acquire) < total {
            // A helper that the system has put aside needs a core to go on.
            turns += 1;
            if turns < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        // What was bound may be freed when this launch is over.
        *hold(&self.board.newest) = None;
        !shared.failed.load(Ordering::Relaxed)
    }
}

impl Board {
    fn announce(&self, shared: &Arc<Shared>) {
        let mut newest = hold(&self.newest);
        *newest = Some(Arc::clone(shared));
        self.number.fetch_add(1, Ordering::Release);
        drop(newest);
        if self.sleeping.load(Ordering::Acquire) > 0 {
            self.news.notify_all();
        }
    }

    /// Helps with launches until the pool ends.
    fn help(&self) {
        let mut seen = 0;
        loop {
            let Some(number) = self.next(seen) else { return };
            seen = number;
            let newest = hold(&self.newest).clone();
            if let Some(shared) = newest {
                shared.work();
            }
        }
    }

    /// Waits for a launch behind this one. Returns its number.
    fn next(&self, seen: u64) -> Option<u64> {
        let start = Instant::now();
        loop {
            let number = self.number.load(Ordering::Acquire);
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            if number != seen {
                return Some(number);
            }
            if start.elapsed() > PATIENCE {
                break;
            }
            std::hint::spin_loop();
        }
        let mut newest = hold(&self.newest);
        self.sleeping.fetch_add(1, Ordering::AcqRel);
        while self.number.load(Ordering::Acquire) == seen && !self.ended.load(Ordering::Acquire) {
            newest = self.news.wait(newest).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::AcqRel);
        drop(newest);
        (!self.ended.load(Ordering::Acquire)).then(|| self.number.load(Ordering::Acquire))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let newest = hold(&self.board.newest);
        self.board.ended.store(true, Ordering::Release);
        drop(newest);
        self.board.news.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}
