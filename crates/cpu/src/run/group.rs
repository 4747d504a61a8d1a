//! Runs a workgroup. Its invocations run one after the other; if they wait for one another, each has a stack
//! of its own and hands over where it waits.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::pool::Line;
use crate::compile::{Bound, Context, LINE, MOST_FRAME, Program};

/// The bytes of an invocation's stack: a kernel's variables, and a little for what hands over.
const STACK: usize = MOST_FRAME + (32 << 10);

const _: () = assert!(size_of::<Line<[u64; 8]>>() == LINE && align_of::<Line<[u64; 8]>>() == LINE);

thread_local! {
    /// The memory that a workgroup shares, which a thread keeps from workgroup to workgroup. It begins at
    /// a cache line: a vector of AVX-512 fills a line, and loading it from two lines takes twice as long.
    static SHARED: RefCell<Vec<Line<[u64; 8]>>> = RefCell::default();
}

/// The most stacks of a device. Each of them is two mappings, of which Linux allows a process 65,530; when
/// these are used up, allocations fail that have nothing to do with it, and end the process.
pub(crate) const MOST_STACKS: usize = 16 << 10;

/// The stacks of a device that no thread uses now. If there are few, threads use them in turn.
pub(crate) struct Stacks {
    free: Mutex<Vec<DefaultStack>>,
    /// The number of stacks that may still be made.
    room: AtomicUsize,
}

impl std::fmt::Debug for Stacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stacks")
    }
}

impl Stacks {
    /// Returns none, and allows for so many.
    pub fn new(most: usize) -> Self {
        Self { free: Mutex::default(), room: AtomicUsize::new(most) }
    }

    /// Returns the stacks that a workgroup needs, or `None` if there are too few and no more can be made.
    pub fn take(&self, program: &Program) -> Option<Vec<DefaultStack>> {
        let count = if program.has_barriers && program.lanes > 1 { program.lanes as usize } else { 0 };
        if count == 0 {
            return Some(Vec::new());
        }
        let mut taken = {
            let mut free = self.hold();
            let rest = free.len().saturating_sub(count);
            free.split_off(rest)
        };
        while taken.len() < count {
            let Some(stack) = self.make() else {
                self.give(taken);
                return None;
            };
            taken.push(stack);
        }
        Some(taken)
    }

    fn make(&self) -> Option<DefaultStack> {
        let less = |room: usize| room.checked_sub(1);
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        let made = DefaultStack::new(STACK).ok();
        if made.is_none() {
            self.room.fetch_add(1, Ordering::Relaxed);
        }
        made
    }

    /// Takes stacks back.
    pub fn give(&self, mut stacks: Vec<DefaultStack>) {
        if !stacks.is_empty() {
            self.hold().append(&mut stacks);
        }
    }

    fn hold(&self) -> MutexGuard<'_, Vec<DefaultStack>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a workgroup is in its launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub group: [u32; 3],
    pub groups: [u32; 3],
}

/// Runs a workgroup, on the stacks that it needs ([`Stacks::take`]).
///
/// # Safety
/// As for [`Program::run`].
#[expect(unsafe_code, reason = "machine code runs")]
pub(crate) unsafe fn run(
    program: &Program,
    bindings: &[Bound],
    place: Place,
    clears: bool,
    stacks: &mut Vec<DefaultStack>,
) {
    if program.shared_bytes == 0 && !program.has_barriers {
        let context = context(bindings, place, std::ptr::null_mut());
        // SAFETY: what the caller promises.
        unsafe { program.run(&context, 0, program.lanes) };
        return;
    }
    let mut shared = SHARED.take();
    let lines = program.shared_bytes.div_ceil(LINE) + 1;
    if shared.len() < lines {
        shared.resize(lines, Line::default());
    }
    if clears {
        shared[..lines].fill(Line::default());
    }
    let context = context(bindings, place, shared.as_mut_ptr().cast());
    if stacks.is_empty() {
        // SAFETY: what the caller promises.
        unsafe { program.run(&context, 0, program.lanes) };
    } else {
        // SAFETY: what the caller promises.
        unsafe { together(program, &context, stacks) };
    }
    SHARED.set(shared);
}

fn context(bindings: &[Bound], place: Place, shared: *mut u8) -> Context {
    Context {
        bindings: bindings.as_ptr(),
        shared,
        wait: alone,
        waiter: std::ptr::null(),
        group: place.group,
        groups: place.groups,
    }
}

/// Runs the invocations of a workgroup in turns from barrier to barrier.
///
/// # Safety
/// As for [`Program::run`].
#[expect(unsafe_code, reason = "machine code runs")]
unsafe fn together(program: &Program, all: &Context, stacks: &mut Vec<DefaultStack>) {
    let (program_at, all_at) = (std::ptr::from_ref(program), std::ptr::from_ref(all));
    let mut running: Vec<Coroutine<(), (), ()>> = stacks
        .drain(..)
        .zip(0..program.lanes)
        .map(|(stack, lane)| {
            let run = move |yielder: &Yielder<(), ()>, ()| {
                // SAFETY: both outlive the invocations, which end below.
                let (program, all) = unsafe { (&*program_at, &*all_at) };
                let waiter = std::ptr::from_ref(yielder).cast();
                let own = Context { wait: hand_over, waiter, ..*all };
                // SAFETY: what the caller promises.
                unsafe { program.run(&own, lane, lane + 1) };
            };
            Coroutine::with_stack(stack, run)
        })
        .collect();
    let mut left = running.len();
    while left > 0 {
        for one in running.iter_mut().filter(|one| !one.done()) {
            if let CoroutineResult::Return(()) = one.resume(()) {
                left -= 1;
            }
        }
    }
    stacks.extend(running.into_iter().map(Coroutine::into_stack));
}

/// Goes on with the other invocations until all have come so far.
///
/// # Safety
/// `waiter` is the yielder of the invocation that runs.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn hand_over(waiter: *const c_void) {
    // SAFETY: what the caller promises.
    unsafe { &*waiter.cast::<Yielder<(), ()>>() }.suspend(());
}

/// There are no others.
#[expect(unsafe_code, reason = "called by machine code")]
unsafe extern "C" fn alone(_: *const c_void) {}
