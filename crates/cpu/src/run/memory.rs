//! The memory of buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// The alignment of buffers, in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// The memory of a buffer, which begins as zeros. What reads and writes it when is the timeline's business: it
/// is no different from memory of a GPU.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: all access is through raw pointers, in an order that the timeline keeps.
#[expect(unsafe_code, reason = "memory is used by several threads in turn")]
unsafe impl Send for Memory {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "memory is used by several threads in turn")]
unsafe impl Sync for Memory {}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes())
    }
}

impl Memory {
    /// Returns memory of so many bytes, or `None` if there is none.
    #[expect(unsafe_code, reason = "memory may be missing, which no safe allocation tells")]
    pub fn new(bytes: u64) -> Option<Self> {
        // Kernels without bounds checks may load a whole vector at the end.
        let size = usize::try_from(bytes).ok()?.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Returns the address of a byte.
    #[expect(unsafe_code, reason = "an address within an allocation")]
    pub fn at(&self, offset: u64) -> *mut u8 {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.layout.size());
        // SAFETY: it is within the allocation, or just behind it.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "what was allocated is freed")]
    fn drop(&mut self) {
        // SAFETY: it was allocated so.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
