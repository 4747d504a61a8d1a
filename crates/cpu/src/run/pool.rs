//! The threads that share the workgroups of a launch. Which of them computes which workgroup depends on their
//! speed, and no result does.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::group::{MOST_STACKS, Stacks};
use super::launch::Launch;
use super::timeline::STACK;

/// How long a thread looks for the next launch before it sleeps. Launches of a step follow one another at
/// once. Some are a single workgroup, for which the others wait, and a thread that sleeps takes long to wake.
const PATIENCE: Duration = Duration::from_micros(200);

/// The pieces into which the workgroups of a launch are divided for each thread.
const PIECES: u32 = 8;

/// The most helpers that one thread wakes for a launch.
const WAKES: u64 = 2;

/// A launch that threads share. Each thread has a part of its workgroups, the same in each launch, since what
/// it computes in one launch is mostly what it reads in the next, and is in its own cache. A thread that is
/// done with its part helps with the others.
#[derive(Debug)]
struct Shared {
    launch: Launch,
    total: u64,
    piece: u64,
    parts: Vec<Line<Part>>,
    done: Line<AtomicU64>,
    left: Left,
}

/// A part of the workgroups: the first that nobody has taken, and the end.
#[derive(Debug, Default)]
struct Part {
    next: AtomicU64,
    end: u64,
}

impl Part {
    /// Takes the next `count` workgroups, or fewer if fewer are left. Returns `None` if none are.
    fn take(&self, count: u64) -> Option<Range<u64>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < self.end).then(|| first..self.end.min(first.saturating_add(count)))
    }
}

/// What has a line of the cache of its own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Line<T>(T);

/// The workgroups that a thread took and had no stacks for.
#[derive(Debug, Default)]
struct Left {
    pieces: Mutex<Vec<Range<u64>>>,
    count: AtomicU64,
}

impl Shared {
    fn new(launch: &Launch, total: u64, threads: u64) -> Self {
        let piece = (total / (threads * u64::from(PIECES))).max(1);
        let end = |thread: u64| (u128::from(total) * u128::from(thread) / u128::from(threads)) as u64;
        let part = |thread| Line(Part { next: AtomicU64::new(end(thread)), end: end(thread + 1) });
        let (done, left) = (Line::default(), Left::default());
        Self { launch: launch.clone(), total, piece, parts: (0..threads).map(part).collect(), done, left }
    }

    /// Returns how many pieces are left.
    fn pieces(&self) -> u64 {
        let left = |part: &Line<Part>| part.0.end.saturating_sub(part.0.next.load(Ordering::Relaxed));
        self.parts.iter().map(|part| left(part).div_ceil(self.piece)).sum()
    }

    /// Computes pieces, first those of the thread's own part, until none is left or there is no memory for
    /// the stacks of one. Returns whether there was.
    fn work(&self, thread: usize, stacks: &Stacks) -> bool {
        let (before, from) = self.parts.split_at(thread.min(self.parts.len()));
        for part in from.iter().chain(before) {
            while let Some(piece) = part.0.take(self.piece) {
                let count = piece.end - piece.start;
                if !self.launch.run(piece.clone(), stacks) {
                    self.leave(piece);
                    return false;
                }
                self.done.0.fetch_add(count, Ordering::Release);
            }
        }
        true
    }

    /// Leaves a piece to the end of the launch.
    fn leave(&self, piece: Range<u64>) {
        let count = piece.end - piece.start;
        hold(&self.left.pieces).push(piece);
        self.left.count.fetch_add(count, Ordering::Release);
    }

    /// Leaves all that nobody has taken to the end of the launch, since it may be that no helper comes.
    fn leave_rest(&self) {
        for Line(part) in &self.parts {
            if let Some(piece) = part.take(self.total) {
                self.leave(piece);
            }
        }
    }

    /// Computes what was left, when all else is done and nobody has stacks any more. Returns whether there
    /// was memory for it.
    fn complete(&self, stacks: &Stacks) -> bool {
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
        pieces.into_iter().all(|piece| self.launch.run(piece, stacks))
    }
}

/// The threads beside the one that launches.
#[derive(Debug)]
pub(crate) struct Pool {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// Where launches are announced.
#[derive(Debug)]
struct Board {
    /// Counts the launches.
    number: AtomicU64,
    sleeping: AtomicU64,
    ended: AtomicBool,
    newest: Mutex<Option<Arc<Shared>>>,
    news: Condvar,
    stacks: Stacks,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts so many threads beside this one. `begin` is called on each.
    pub fn new(helpers: usize, begin: fn()) -> Self {
        Self::with_stacks(helpers, begin, Stacks::new(MOST_STACKS))
    }

    fn with_stacks(helpers: usize, begin: fn(), stacks: Stacks) -> Self {
        let board = Arc::new(Board::new(stacks));
        let start = |at: usize| {
            let board = Arc::clone(&board);
            let work = move || {
                begin();
                board.help(at + 1);
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
            return launch.run(0..total, &self.board.stacks);
        }
        let shared = Arc::new(Shared::new(launch, total, self.helpers.len() as u64 + 1));
        self.board.announce(&shared);
        if !shared.work(0, &self.board.stacks) {
            shared.leave_rest();
        }
        let is_complete = shared.complete(&self.board.stacks);
        // What was bound may be freed when this launch is over.
        *hold(&self.board.newest) = None;
        is_complete
    }
}

impl Board {
    fn new(stacks: Stacks) -> Self {
        Self {
            number: AtomicU64::new(0),
            sleeping: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            newest: Mutex::default(),
            news: Condvar::new(),
            stacks,
        }
    }

    fn announce(&self, shared: &Arc<Shared>) {
        let mut newest = hold(&self.newest);
        *newest = Some(Arc::clone(shared));
        self.number.fetch_add(1, Ordering::Release);
        drop(newest);
        self.wake(shared.pieces().saturating_sub(1));
    }

    /// Wakes some helpers, for so many pieces. Each of them wakes some more, since one that wakes many would
    /// do nothing else for a while.
    fn wake(&self, pieces: u64) {
        let sleeping = self.sleeping.load(Ordering::Acquire);
        for _ in 0..pieces.min(sleeping).min(WAKES) {
            self.news.notify_one();
        }
    }

    /// Helps with launches until the pool ends, as the thread of this number.
    fn help(&self, thread: usize) {
        let mut seen = 0;
        while let Some(next) = self.next(seen) {
            seen = next.number;
            let newest = hold(&self.newest).clone();
            let Some(shared) = newest.filter(|shared| shared.pieces() > 0) else { continue };
            if next.slept {
                self.wake(shared.pieces());
            }
            shared.work(thread, &self.stacks);
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

#[cfg(test)]
mod tests {
    use crate::compile::{Bound, EXTENSIONS, Mode, Program, Source, Target};
    use crate::run::launch::Bindings;
    use crate::run::memory::Memory;

    use super::*;

    /// Several threads want stacks for a workgroup each, and there are enough for one workgroup, or for none.
    #[test]
    fn threads_without_stacks_leave_their_workgroups_to_the_end() {
        const GROUPS: u32 = 40;
        let source = Source::parse(
            "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
var<workgroup> turn: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    turn[lane] = lane;
    workgroupBarrier();
    if turn[(lane + 3u) % 64u] == 0u { x[id.x] += 1u; }
}",
            EXTENSIONS,
        );
        let mode = Mode { checked: true, ..Mode::default() };
        let program = Program::compile(&source.unwrap(), None, mode, Target::Host).map(Arc::new).unwrap();
        let memory = Memory::new(4 * u64::from(GROUPS)).map(Arc::new).unwrap();
        let mut bindings = Bindings::default();
        bindings.bind(0, Bound { start: memory.at(0), bytes: memory.bytes() }, Arc::clone(&memory));
        let launch = Launch { program, bindings: Arc::new(bindings), groups: [GROUPS, 1, 1], clears: true };
        for most in [64, 65, 100, 127, 200] {
            for _ in 0..10 {
                let pool = Pool::with_stacks(4, || (), Stacks::new(most));
                assert!((0..20).all(|_| pool.run(&launch)));
            }
        }
        for group in 0..u64::from(GROUPS) {
            // SAFETY: the buffer holds it, and the launches are over.
            #[expect(unsafe_code, reason = "what a kernel wrote is read")]
            let count = unsafe { memory.at(4 * group).cast::<u32>().read() };
            assert_eq!(count, 5 * 10 * 20);
        }
        assert!(!Pool::with_stacks(4, || (), Stacks::new(63)).run(&launch));
        // A thread begins with its own part, and the parts have each workgroup once.
        for threads in [1, 3, 8, 60] {
            let shared = Shared::new(&launch, u64::from(GROUPS), threads);
            let parts = shared.parts.iter().map(|Line(part)| part.next.load(Ordering::Relaxed)..part.end);
            let own = parts.clone().nth(threads as usize / 2).unwrap();
            assert!(parts.flatten().eq(0..u64::from(GROUPS)), "{threads} threads");
            let first = shared.parts[threads as usize / 2].0.take(1);
            assert_eq!(first, (!own.is_empty()).then(|| own.start..own.start + 1));
        }
    }
}
