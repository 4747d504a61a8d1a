//! An allocator that has no more than a gigabyte.

#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most bytes that may be allocated at once.
pub const LIMIT: usize = 1 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which fails beyond [`LIMIT`]. Code that asks for memory in a way that may fail
/// gets an error; other code ends the process with the size that it asked for, which is what fuzzers look
/// for.
#[derive(Debug)]
pub struct Limited;

impl Limited {
    /// Returns the most bytes that were allocated at once since [`Limited::reset`].
    pub fn peak() -> usize {
        PEAK.load(Relaxed)
    }

    /// Starts to measure the peak anew.
    pub fn reset() {
        PEAK.store(LIVE.load(Relaxed), Relaxed);
    }
}

/// Counts bytes. Returns whether they are within the limit, and otherwise counts none.
fn take(bytes: usize) -> bool {
    let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
    if live > LIMIT {
        LIVE.fetch_sub(bytes, Relaxed);
        return false;
    }
    PEAK.fetch_max(live, Relaxed);
    true
}

// SAFETY: everything that is within the limit is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if take(layout.size()) { unsafe { System.alloc(layout) } } else { null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { null_mut() }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let more = size.saturating_sub(layout.size());
        if !take(more) {
            return null_mut();
        }
        LIVE.fetch_sub(layout.size().saturating_sub(size), Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}
