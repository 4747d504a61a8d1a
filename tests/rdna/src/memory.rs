//! What a kernel reads and writes: descriptors, params, buffers, and the memory of the workgroup.

use crate::Launch;

/// The bytes of a descriptor.
const DESCRIPTOR: u32 = 16;
/// The maximum number of bytes of a workgroup's memory.
const SHARED: usize = 64 << 10;
/// The initial value of a workgroup's memory, of a lane's memory and of registers: a NaN.
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

    /// Returns a word of the descriptors. A descriptor contains the number of a binding and the size of its
    /// buffer.
    pub fn descriptor(&self, at: u32) -> Option<u32> {
        let binding = at / DESCRIPTOR;
        let bytes = match binding {
            0 => u32::try_from(4 * self.launch.params.len()).ok()?,
            _ => self.launch.bindings.get(binding as usize - 1)?.bytes,
        };
        Some([binding, 0, bytes, 0][(at % DESCRIPTOR / 4) as usize])
    }

    /// Returns a word of a buffer. Behind the end of the buffer the word is 0, as on the hardware. Returns
    /// `None` if there is no such buffer.
    pub fn load(&self, buffer: u32, bytes: u32, at: u32) -> Option<u32> {
        if at.checked_add(4).is_none_or(|end| end > bytes) {
            return Some(0);
        }
        let Some(binding) = (buffer as usize).checked_sub(1) else {
            return self.launch.params.get(at as usize / 4).copied();
        };
        let bound = self.launch.bindings.get(binding)?;
        let from = bound.offset + at as usize;
        let word = self.buffers.get(bound.buffer)?.get(from..from + 4)?;
        Some(u32::from_le_bytes(word.try_into().ok()?))
    }

    /// Writes a word of a buffer. Behind the end of the buffer nothing is written, as on the hardware.
    /// Returns `None` if there is no such buffer.
    pub fn store(&mut self, buffer: u32, bytes: u32, at: u32, word: u32) -> Option<()> {
        if at.checked_add(4).is_none_or(|end| end > bytes) {
            return Some(());
        }
        let bound = self.launch.bindings.get((buffer as usize).checked_sub(1)?)?;
        let to = bound.offset + at as usize;
        let own = self.buffers.get_mut(bound.buffer)?.get_mut(to..to + 4)?;
        own.copy_from_slice(&word.to_le_bytes());
        Some(())
    }

    /// Returns a word of the workgroup's memory.
    pub fn shared(&mut self, at: u32) -> Option<&mut u32> {
        self.shared.get_mut(at as usize / 4).filter(|_| at.is_multiple_of(4))
    }
}
