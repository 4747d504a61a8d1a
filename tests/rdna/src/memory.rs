//! What a kernel reads and writes: descriptors, params, buffers, and the memory of the workgroup.

use crate::Launch;

/// The bytes of a descriptor.
const DESCRIPTOR: u32 = 16;
/// The bytes of memory that a workgroup has at most.
const SHARED: usize = 64 << 10;
/// What memory of a workgroup or a lane has before it is written: a NaN.
pub const UNWRITTEN: u32 = 0x7fa5_a5a5;

/// The memory of a workgroup.
pub struct Memory<'a> {
    launch: Launch<'a>,
    buffers: &'a mut [Vec<u8>],
    shared: Vec<u32>,
}

impl<'a> Memory<'a> {
    pub fn new(launch: Launch<'a>, buffers: &'a mut [Vec<u8>]) -> Self {
        Self { launch, buffers, shared: vec![UNWRITTEN; SHARED / 4] }
    }

    /// Returns a word of the descriptors: a buffer's number by its binding, and its bytes.
    pub fn descriptor(&self, at: u32) -> Option<u32> {
        let binding = at / DESCRIPTOR;
        let bytes = match binding {
            0 => u32::try_from(4 * self.launch.params.len()).ok()?,
            _ => self.launch.bindings.get(binding as usize - 1)?.bytes,
        };
        Some([binding, 0, bytes, 0][(at % DESCRIPTOR / 4) as usize])
    }

    /// Returns a word of a buffer, or 0 behind its end, as the hardware does.
    pub fn load(&self, buffer: u32, bytes: u32, at: u32) -> u32 {
        if at.checked_add(4).is_none_or(|end| end > bytes) {
            return 0;
        }
        let Some(binding) = (buffer as usize).checked_sub(1) else {
            return self.launch.params[at as usize / 4];
        };
        let bound = self.launch.bindings[binding];
        let from = bound.offset + at as usize;
        let mut word = [0; 4];
        word.copy_from_slice(&self.buffers[bound.buffer][from..from + 4]);
        u32::from_le_bytes(word)
    }

    /// Writes a word of a buffer, or nothing behind its end.
    pub fn store(&mut self, buffer: u32, bytes: u32, at: u32, word: u32) {
        let Some(binding) = (buffer as usize).checked_sub(1) else { return };
        if at.checked_add(4).is_some_and(|end| end <= bytes) {
            let bound = self.launch.bindings[binding];
            let to = bound.offset + at as usize;
            self.buffers[bound.buffer][to..to + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns a word of the workgroup's memory.
    pub fn shared(&mut self, at: u32) -> Option<&mut u32> {
        self.shared.get_mut(at as usize / 4).filter(|_| at.is_multiple_of(4))
    }
}
