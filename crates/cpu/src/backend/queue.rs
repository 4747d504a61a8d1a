//! The queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wgpu::custom::{
    BoxSubmittedWorkDoneCallback, DispatchBlas, DispatchBuffer, DispatchCommandBuffer,
    DispatchQueueWriteBuffer, DispatchSurfaceOutputDetail, QueueInterface,
};
use wgpu::{BufferAddress, BufferSize, BufferUsages};

use crate::run::command::Command;
use crate::run::memory::{Memory, Owner};
use crate::run::timeline::Timeline;

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
        let fits = match buffer.as_custom::<Buffer>() {
            Some(own) => own.allows(BufferUsages::COPY_DST, at, bytes),
            None => Err("a buffer of another device".to_owned()),
        };
        fits.map_err(|message| self.errors.invalid(message)).ok()
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
        let mut commands = Vec::new();
        let is_destroyed = self.is_destroyed.load(Ordering::Relaxed);
        let mut is_valid = !is_destroyed;
        for buffer in buffers {
            match buffer.as_custom::<Recorded>().and_then(Recorded::take) {
                Some(mut own) => commands.append(&mut own),
                None => is_valid = false,
            }
        }
        if !is_valid {
            commands.clear();
        }
        let (number, refused) = {
            // It is held until all is submitted, so that no other thread's submission comes between.
            let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
            let own = std::mem::take(&mut *writes);
            self.timeline.submit(if is_destroyed { Vec::new() } else { own }, commands)
        };
        match refused {
            Some(Owner::Nobody) => self.errors.invalid("commands that use a buffer which is destroyed"),
            Some(_) => self.errors.invalid("commands that use a buffer which is mapped"),
            None => {}
        }
        number
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    fn on_submitted_work_done(&self, callback: BoxSubmittedWorkDoneCallback) {
        self.timeline.progress().afterwards(move |_| callback());
    }

    fn compact_blas(&self, _: &DispatchBlas) -> (Option<u64>, DispatchBlas) {
        self.errors.invalid("acceleration structures: not supported");
        (None, DispatchBlas::custom(Unused))
    }

    fn present(&self, _: &DispatchSurfaceOutputDetail) {}
}
