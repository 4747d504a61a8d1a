//! The memory of buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment of buffers, in bytes: a cache line.
const ALIGNMENT: usize = 64;
/// A huge page of Linux, which buffers of at least this size ask for. The CPU remembers where some 2,000
/// pages are, which are 8 MB of the usual ones, and looks the others up in memory.
#[cfg(any(test, all(target_os = "linux", not(miri))))]
const HUGE: usize = 2 << 20;
/// Heap buffers from this size on get their pages when they are created. Otherwise each page faults at its
/// first use, and again at its first write if that use was a read. Pages of [`HUGE`] buffers are zeroed at
/// first use, by all threads in parallel.
#[cfg(all(target_os = "linux", not(miri)))]
const LEAST_POPULATED: usize = 64 << 10;
/// The alignment that the system's memory has by itself. It makes fresh pages of zeros for no more than that.
const NATURAL: usize = 16;

/// Nobody has mapped it.
const FREE: u64 = 0;
/// The host has it.
const HERE: u64 = 1;
/// It was destroyed, and nobody may use it any more.
const GONE: u64 = u64::MAX;

/// Who may use the memory of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Commands may use it.
    Device,
    /// The host has it, or has asked for it.
    Host,
    /// It was destroyed, so nobody may.
    Nobody,
}

impl Owner {
    /// Returns who owns two memories: the device if both are the device's.
    pub fn and(self, other: Self) -> Self {
        if self == Self::Device { other } else { self }
    }
}

/// Where a buffer's memory comes from, and what is needed to free it.
enum Origin {
    Heap {
        base: NonNull<u8>,
        layout: Layout,
    },
    /// Pages of the system, with their number of bytes. They begin where the buffer does.
    #[cfg(all(target_os = "linux", not(miri)))]
    Pages(usize),
}

/// The memory of a buffer, which begins as zeros. What reads and writes it when is the timeline's business:
/// it is no different from memory of a GPU.
pub(crate) struct Memory {
    start: NonNull<u8>,
    origin: Origin,
    bytes: u64,
    /// [`FREE`], [`HERE`], [`GONE`], or the number of the map that was asked for.
    map: AtomicU64,
}

// SAFETY: all access is through raw pointers, in an order that the timeline keeps.
#[expect(unsafe_code, reason = "memory is used by several threads in turn")]
unsafe impl Send for Memory {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "memory is used by several threads in turn")]
unsafe impl Sync for Memory {}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes)
    }
}

impl Memory {
    /// Returns memory of so many bytes, or `None` if there is none.
    pub fn new(bytes: u64) -> Option<Self> {
        let own = usize::try_from(bytes).ok()?.checked_next_multiple_of(ALIGNMENT)?;
        let (start, origin) = huge_pages(own).or_else(|| lines(own))?;
        Some(Self { start, origin, bytes, map: AtomicU64::new(FREE) })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of a byte.
    #[expect(unsafe_code, reason = "an address within an allocation")]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // SAFETY: it is within the allocation, or just behind it.
        unsafe { self.start.as_ptr().add(offset.min(self.bytes) as usize) }
    }

    /// Notes that the host asks for it, or has it at once. Returns the number of the map, which is never
    /// given if the memory was destroyed.
    pub fn ask(&self, at_once: bool) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(HERE + 1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.set(if at_once { HERE } else { number });
        number
    }

    /// Gives it to the host that asked for it. Returns whether it still wants it.
    pub fn give(&self, number: u64) -> bool {
        self.map.compare_exchange(number, HERE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes it back from the host.
    pub fn take_back(&self) {
        self.set(FREE);
    }

    /// Notes that it was destroyed: from now on neither the host nor commands get it. Commands that were
    /// submitted before run.
    pub fn destroy(&self) {
        self.map.store(GONE, Ordering::Release);
    }

    /// Notes a map, unless the memory was destroyed.
    fn set(&self, map: u64) {
        let change = |now: u64| (now != GONE).then_some(map);
        let _ = self.map.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Returns whether the host has it.
    pub fn is_here(&self) -> bool {
        self.map.load(Ordering::Acquire) == HERE
    }

    /// Returns who may use it.
    pub fn owner(&self) -> Owner {
        match self.map.load(Ordering::Acquire) {
            FREE => Owner::Device,
            GONE => Owner::Nobody,
            _ => Owner::Host,
        }
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "what was allocated is freed")]
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: it was allocated so, and nobody uses it any more.
            Origin::Heap { base, layout } => unsafe { dealloc(base.as_ptr(), layout) },
            #[cfg(all(target_os = "linux", not(miri)))]
            // SAFETY: so many bytes were mapped here, and nobody uses them any more.
            Origin::Pages(mapped) => unsafe {
                let _ = rustix::mm::munmap(self.start.as_ptr().cast(), mapped);
            },
        }
    }
}

/// Returns zeros from the allocator that begin at a line of the cache, or `None` if it has none.
#[expect(unsafe_code, reason = "memory may be missing, which no safe allocation tells")]
fn lines(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, NATURAL).ok()?;
    // SAFETY: the size is not zero.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    let before = base.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    // SAFETY: it is so many bytes longer.
    let start = unsafe { base.add(before) };
    populate(start, bytes);
    Some((start, Origin::Heap { base, layout }))
}

/// Asks Linux (5.14 or later) to provide the pages of a large buffer now. Errors are ignored.
#[cfg(all(target_os = "linux", not(miri)))]
#[expect(unsafe_code, reason = "the system provides pages of an allocation")]
fn populate(start: NonNull<u8>, bytes: usize) {
    if bytes >= LEAST_POPULATED {
        let page = rustix::param::page_size();
        let before = start.as_ptr().align_offset(page).min(bytes);
        let pages = (bytes - before) / page * page;
        // SAFETY: the pages belong to this allocation, and populating them does not change their content.
        let _ = unsafe {
            let first = start.as_ptr().add(before).cast();
            rustix::mm::madvise(first, pages, rustix::mm::Advice::LinuxPopulateWrite)
        };
    }
}

/// Does nothing: pages are populated on Linux only.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn populate(_start: NonNull<u8>, _bytes: usize) {}

/// Maps zeroed memory that begins at a huge page. Returns `None` if the buffer is smaller than such a page,
/// or if the system has no memory. The system zeroes a page when a thread first uses it, so all threads
/// share this work in the first step. Rust's allocator would write all zeros at once, on one thread.
#[cfg(all(target_os = "linux", not(miri)))]
#[expect(unsafe_code, reason = "pages of the system are mapped and unmapped")]
fn huge_pages(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    if bytes < HUGE {
        return None;
    }
    let wanted = bytes.checked_next_multiple_of(HUGE)?;
    let mapped = wanted.checked_add(HUGE)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses where, so nobody uses these addresses.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }.ok()?;
    let before = base.cast::<u8>().align_offset(HUGE).min(HUGE);
    // SAFETY: all of it is within the pages that were mapped. Nobody has used them, and what is unmapped
    // before and behind stays unused.
    unsafe {
        let start = base.byte_add(before);
        // If the system cannot cut the mapping, some addresses stay taken. Memory does not.
        if before > 0 {
            let _ = munmap(base, before);
        }
        if before < HUGE {
            let _ = munmap(start.byte_add(wanted), HUGE - before);
        }
        // Pages that are not filled stay small. A system without huge pages leaves all as they are.
        let _ = madvise(start, bytes / HUGE * HUGE, Advice::LinuxHugepage);
        Some((NonNull::new(start.cast())?, Origin::Pages(wanted)))
    }
}

/// Returns `None`: huge pages are used on Linux alone.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn huge_pages(_bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers begin at a line of the cache, and large ones at a huge page. All of their bytes are zeros.
    #[test]
    #[expect(unsafe_code, reason = "memory of buffers is behind raw pointers")]
    fn buffers_are_zeros_that_begin_at_a_line_or_a_page() {
        let huge = HUGE as u64;
        for bytes in [0, 1, 100, huge - 64, huge, huge + 1, 3 * huge / 2, 5 * huge] {
            let memory = Memory::new(bytes).unwrap();
            let is_huge = cfg!(all(target_os = "linux", not(miri))) && bytes >= huge;
            let alignment = if is_huge { HUGE } else { ALIGNMENT };
            assert!(memory.at(0).addr().is_multiple_of(alignment), "{bytes} bytes");
            // SAFETY: the memory has so many bytes, and nobody else uses it.
            let all = unsafe { std::slice::from_raw_parts_mut(memory.at(0), bytes as usize) };
            assert!(all.iter().all(|byte| *byte == 0), "{bytes} bytes");
            all.fill(1);
        }
        assert!(Memory::new(u64::MAX).is_none() && Memory::new(1 << 62).is_none());
    }

    /// Ten thousand buffers of 4 MB, one after another, leave little mapped: neither themselves, which would
    /// be 40 GB, nor what is cut off for each to begin at a huge page.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn pages_go_back_to_the_system() {
        let mapped = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
        };
        let before = mapped();
        for _ in 0..10_000 {
            Memory::new(4 << 20).unwrap();
        }
        assert!(mapped() < before + (8 << 30), "{before} bytes, and then {}", mapped());
    }
}
