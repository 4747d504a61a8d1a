//! The queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wgpu::custom::{
    BoxSubmittedWorkDoneCallback, DispatchBlas, DispatchBuffer, DispatchCommandBuffer,
    DispatchQueueWriteBuffer, DispatchSurfaceOutputDetail, QueueInterface,
};
use wgpu::{BufferAddress, BufferSize};

use crate::run::memory::Memory;
use crate::run::timeline::{Command, Timeline};

use super::commands::Recorded;
use super::errors::Errors;
use super::resources::{Buffer, Staged};
use super::unused::Unused;

/// The queue of a device.
#[derive(Debug)]
pub(super) struct Queue {
    pub errors: Arc<Errors>,
    pub timeline: Arc<Timeline>,
    /// The writes that go before the next submission.
    pub writes: Mutex<Vec<Command>>,
    pub is_destroyed: Arc<AtomicBool>,
}

impl Queue {
    fn write(&self, buffer: &DispatchBuffer, at: u64, from: Arc<Memory>, bytes: u64) {
        if self.validate_write_buffer(buffer, at, bytes).is_none() {
            return;
        }
        if let Some(own) = buffer.as_custom::<Buffer>() {
            let to = Arc::clone(&own.memory);
            let write = Command::Copy { from, from_at: 0, to, to_at: at, bytes };
            self.writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
        }
    }

    fn validate_write_buffer(&self, buffer: &DispatchBuffer, at: u64, bytes: u64) -> Option<()> {
        let own = buffer.as_custom::<Buffer>();
        let fits = own.is_some_and(|own| at.checked_add(bytes).is_some_and(|end| end <= own.bytes));
        if !fits {
            self.errors.invalid(format!("{bytes} bytes from byte {at} on: behind the end of the buffer"));
        }
        fits.then_some(())
    }

    fn staging(&self, bytes: u64) -> Option<Arc<Memory>> {
        let memory = Memory::new(bytes);
        if memory.is_none() {
            self.errors.out_of_memory(format!("{bytes} bytes to write a buffer"));
        }
        memory.map(Arc::new)
    }
}

impl QueueInterface for Queue {
    #[expect(unsafe_code, reason = "bytes go to memory that nobody else has yet")]
    fn write_buffer(&self, buffer: &DispatchBuffer, offset: BufferAddress, data: &[u8]) {
        let Some(memory) = self.staging(data.len() as u64) else { return };
        // SAFETY: the memory was just made, and has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), memory.at(0), data.len()) };
        self.write(buffer, offset, memory, data.len() as u64);
    }

    fn create_staging_buffer(&self, size: BufferSize) -> Option<DispatchQueueWriteBuffer> {
        let memory = self.staging(size.get())?;
        Some(DispatchQueueWriteBuffer::custom(Staged { memory, length: size.get() as usize }))
    }

    fn validate_write_buffer(
        &self,
        buffer: &DispatchBuffer,
        at: BufferAddress,
        size: BufferSize,
    ) -> Option<()> {
        Self::validate_write_buffer(self, buffer, at, size.get())
    }

    fn write_staging_buffer(
        &self,
        buffer: &DispatchBuffer,
        at: BufferAddress,
        from: &DispatchQueueWriteBuffer,
    ) {
        if let Some(staged) = from.as_custom::<Staged>() {
            self.write(buffer, at, Arc::clone(&staged.memory), staged.length as u64);
        }
    }

    fn write_texture(
        &self,
        _: wgpu::TexelCopyTextureInfo<'_>,
        _: &[u8],
        _: wgpu::TexelCopyBufferLayout,
        _: wgpu::Extent3d,
    ) {
        self.errors.invalid("textures: not supported");
    }

    fn submit(&self, buffers: &mut dyn Iterator<Item = DispatchCommandBuffer>) -> u64 {
        // It is held until all is submitted, so that no other thread's submission comes between.
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut commands = std::mem::take(&mut *writes);
        let mut is_valid = true;
        for buffer in buffers {
            match buffer.as_custom::<Recorded>().and_then(Recorded::take) {
                Some(mut own) => commands.append(&mut own),
                None => is_valid = false,
            }
        }
        let mut is_mapped = false;
        for command in &commands {
            command.memories(&mut |memory| is_mapped |= memory.is_asked_for());
        }
        if is_mapped {
            self.errors.invalid("commands that use a buffer which is mapped");
        }
        if self.is_destroyed.load(Ordering::Relaxed) || is_mapped || !is_valid {
            commands.clear();
        }
        self.timeline.submit(commands)
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    fn on_submitted_work_done(&self, callback: BoxSubmittedWorkDoneCallback) {
        self.timeline.watch().afterwards(move |_| callback());
    }

    fn compact_blas(&self, _: &DispatchBlas) -> (Option<u64>, DispatchBlas) {
        self.errors.invalid("acceleration structures: not supported");
        (None, DispatchBlas::custom(Unused))
    }

    fn present(&self, _: &DispatchSurfaceOutputDetail) {}
}
