//! Runs a workgroup. Its invocations run one after the other; if they wait for one another, each has a stack
//! of its own and hands over where it waits.

use std::cell::RefCell;
use std::ffi::c_void;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::compile::{Bound, Context, MOST_FRAME, Program};

/// The bytes of an invocation's stack: a kernel's variables, and a little for what hands over.
const STACK: usize = MOST_FRAME + (32 << 10);

/// What a thread keeps from workgroup to workgroup.
#[derive(Default)]
struct Kept {
    stacks: Vec<DefaultStack>,
    shared: Vec<u64>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Where a workgroup is in its launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub group: [u32; 3],
    pub groups: [u32; 3],
}

/// Runs a workgroup. Returns whether there was memory for it.
///
/// # Safety
/// As for [`Program::run`].
#[expect(unsafe_code, reason = "machine code runs")]
pub(crate) unsafe fn run(program: &Program, bindings: &[Bound], place: Place, clears: bool) -> bool {
    if program.shared_bytes == 0 && !program.has_barriers {
        let context = context(bindings, place, std::ptr::null_mut());
        // SAFETY: what the caller promises.
        unsafe { program.run(&context, 0, program.lanes) };
        return true;
    }
    let Kept { mut stacks, mut shared } = KEPT.take();
    let words = program.shared_bytes.div_ceil(8) + 2;
    if shared.len() < words {
        shared.resize(words, 0);
    }
    if clears {
        shared[..words].fill(0);
    }
    // Vectors in shared memory need no more than the alignment of words: they are loaded as unaligned.
    let context = context(bindings, place, shared.as_mut_ptr().cast());
    let is_run = if program.has_barriers && program.lanes > 1 {
        // SAFETY: what the caller promises.
        unsafe { together(program, &context, &mut stacks) }
    } else {
        // SAFETY: what the caller promises.
        unsafe { program.run(&context, 0, program.lanes) };
        true
    };
    KEPT.set(Kept { stacks, shared });
    is_run
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

/// Runs the invocations of a workgroup in turns from barrier to barrier. Returns whether there was memory for
/// their stacks.
///
/// # Safety
/// As for [`Program::run`].
#[expect(unsafe_code, reason = "machine code runs")]
unsafe fn together(program: &Program, all: &Context, stacks: &mut Vec<DefaultStack>) -> bool {
    let count = program.lanes as usize;
    while stacks.len() < count {
        match DefaultStack::new(STACK) {
            Ok(stack) => stacks.push(stack),
            Err(_) => {
                // Another thread may have use for the others.
                stacks.clear();
                return false;
            }
        }
    }
    let (program_at, all_at) = (std::ptr::from_ref(program), std::ptr::from_ref(all));
    let mut running: Vec<Coroutine<(), (), ()>> = stacks
        .drain(stacks.len() - count..)
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
    let mut left = count;
    while left > 0 {
        for one in running.iter_mut().filter(|one| !one.done()) {
            if let CoroutineResult::Return(()) = one.resume(()) {
                left -= 1;
            }
        }
    }
    stacks.extend(running.into_iter().map(Coroutine::into_stack));
    true
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
