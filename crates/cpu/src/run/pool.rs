//! The threads that share the workgroups of a launch. Which of them computes which workgroup depends on their
//! speed, and no result does.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// The most helpers that one thread wakes for a launch.
const WAKES: u64 = 2;

/// A launch that threads share.
#[derive(Debug)]
struct Shared {
    launch: Launch,
    total: u64,
    piece: u64,
    taken: Line<AtomicU64>,
    done: Line<AtomicU64>,
    left: Left,
}

/// What has a line of the cache of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The workgroups that a thread took and had no memory for.
#[derive(Debug, Default)]
struct Left {
    pieces: Mutex<Vec<Range<u64>>>,
    count: AtomicU64,
}

impl Shared {
    fn new(launch: &Launch, total: u64, piece: u64) -> Self {
        let (taken, done, left) = (Line::default(), Line::default(), Left::default());
        Self { launch: launch.clone(), total, piece, taken, done, left }
    }

    /// Returns whether pieces are left.
    fn has_work(&self) -> bool {
        self.taken.0.load(Ordering::Relaxed) < self.total
    }

    /// Computes pieces until none is left, or this thread has no memory for one.
    fn work(&self) {
        loop {
            let first = self.taken.0.fetch_add(self.piece, Ordering::Relaxed);
            if first >= self.total {
                return;
            }
            let end = (first + self.piece).min(self.total);
            let reached = self.launch.run(first..end);
            self.done.0.fetch_add(reached - first, Ordering::Release);
            if reached < end {
                hold(&self.left.pieces).push(reached..end);
                self.left.count.fetch_add(end - reached, Ordering::Release);
                return;
            }
        }
    }

    /// Computes what others have left, when they have done all else and need no memory. Returns whether there
    /// was memory for it.
    fn complete(&self) -> bool {
        let mut turns = 0u32;
        loop {
            let left = self.left.count.load(Ordering::Acquire);
            if self.done.0.load(Ordering::Acquire) + left == self.total {
                break;
            }
            // A helper that the system has put aside needs a core to go on.
            turns += 1;
            if turns < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if self.left.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let pieces = std::mem::take(&mut *hold(&self.left.pieces));
        pieces.into_iter().all(|piece| self.launch.run(piece.clone()) == piece.end)
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
    sleeping: AtomicU64,
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
        let shared = Arc::new(Shared::new(launch, total, piece));
        self.board.announce(&shared);
        shared.work();
        let is_complete = shared.complete();
        // What was bound may be freed when this launch is over.
        *hold(&self.board.newest) = None;
        is_complete
    }
}

impl Board {
    fn announce(&self, shared: &Arc<Shared>) {
        let mut newest = hold(&self.newest);
        *newest = Some(Arc::clone(shared));
        self.number.fetch_add(1, Ordering::Release);
        drop(newest);
        self.wake(shared.total.div_ceil(shared.piece) - 1);
    }

    /// Wakes some helpers, for so many pieces. Each of them wakes some more, since one that wakes many would
    /// do nothing else for a while.
    fn wake(&self, pieces: u64) {
        let sleeping = self.sleeping.load(Ordering::Acquire);
        for _ in 0..pieces.min(sleeping).min(WAKES) {
            self.news.notify_one();
        }
    }

    /// Helps with launches until the pool ends.
    fn help(&self) {
        let mut seen = 0;
        while let Some(next) = self.next(seen) {
            seen = next.number;
            let newest = hold(&self.newest).clone();
            let Some(shared) = newest.filter(|shared| shared.has_work()) else { continue };
            if next.slept {
                let taken = shared.taken.0.load(Ordering::Relaxed);
                self.wake(shared.total.saturating_sub(taken).div_ceil(shared.piece));
            }
            shared.work();
        }
    }

    /// Waits for a launch behind this one. Returns none when the pool ends.
    fn next(&self, seen: u64) -> Option<Next> {
        let news = || {
            let number = self.number.load(Ordering::Acquire);
            (number != seen).then_some(number)
        };
        let start = Instant::now();
        loop {
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            if let Some(number) = news() {
                return Some(Next { number, slept: false });
            }
            if start.elapsed() > PATIENCE {
                break;
            }
            std::hint::spin_loop();
        }
        let mut newest = hold(&self.newest);
        self.sleeping.fetch_add(1, Ordering::AcqRel);
        while news().is_none() && !self.ended.load(Ordering::Acquire) {
            newest = self.news.wait(newest).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::AcqRel);
        drop(newest);
        let number = news().filter(|_| !self.ended.load(Ordering::Acquire))?;
        Some(Next { number, slept: true })
    }
}

/// A launch that a helper has waited for.
struct Next {
    number: u64,
    /// Whether the helper slept meanwhile.
    slept: bool,
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
