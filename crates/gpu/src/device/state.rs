//! The persistent state: one buffer a tensor, shared by all plans of a device, read and written in bounded
//! chunks.

use unisono_graph::plan::{Slice, Transfer};

use crate::device::staging::Staging;
use crate::{Device, GpuError};

/// The most bytes that go to or from the host at once.
const CHUNK_BYTES: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct State {
    tensors: Vec<Option<wgpu::Buffer>>,
    /// The staging memory for writes, made on first use and replaced by larger ones up to [`CHUNK_BYTES`].
    write: Option<Staging>,
    /// The staging memory for reads, as for writes.
    read: Option<Staging>,
}

impl State {
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().flatten().map(wgpu::Buffer::size).sum()
    }

    pub fn get(&self, index: usize) -> Option<&wgpu::Buffer> {
        self.tensors.get(index)?.as_ref()
    }
}

impl Device {
    /// Creates tensors 0, 1, ... of the persistent state, of so many bytes each, all zero. Those that exist
    /// are kept.
    ///
    /// # Errors
    /// [`GpuError::Limit`] or [`GpuError::OutOfMemory`], naming the tensor; [`GpuError::Plan`] if it exists
    /// with another size.
    pub fn create_state(&mut self, bytes: &[u64]) -> Result<(), GpuError> {
        let new = bytes.iter().enumerate().filter(|(index, _)| self.state.get(*index).is_none());
        self.fits("the state", new.map(|(_, &bytes)| bytes).fold(0, u64::saturating_add))?;
        bytes.iter().enumerate().try_for_each(|(index, &bytes)| self.ensure_state(index, bytes))
    }

    /// Sets a whole tensor of the state.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such tensor or it has another size; [`GpuError::Lost`];
    /// [`GpuError::Timeout`].
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let tensor = self.tensor(index)?;
        if tensor.size() != bytes.len() as u64 {
            let message = format!("{} bytes given, {} wanted", bytes.len(), tensor.size());
            return Err(GpuError::plan(format!("state {index}"), message));
        }
        let known = self.state.write.take();
        let staging = self.chunk(known, tensor.size(), wgpu::MapMode::Write)?;
        let block = &staging.blocks[0].buffer;
        let mut offset = 0;
        for chunk in bytes.chunks(CHUNK_BYTES as usize) {
            let length = chunk.len() as u64;
            self.settle(&staging, None)?;
            let mut view =
                block.get_mapped_range_mut(..length).map_err(|error| self.blame("state", error))?;
            view.copy_from_slice(chunk);
            drop(view);
            staging.unmap();
            self.copy(&staging, (block, 0), (&tensor, offset), length)?;
            offset += length;
        }
        self.state.write = Some(staging);
        Ok(())
    }

    /// Reads a whole tensor of the state.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such tensor; [`GpuError::Lost`]; [`GpuError::Timeout`].
    pub fn read_state(&mut self, index: usize) -> Result<Vec<u8>, GpuError> {
        self.read_state_into(index, Vec::new())
    }

    /// Reads a whole tensor of the state into `bytes`, whose memory is used again and whose contents are
    /// lost.
    ///
    /// # Errors
    /// Those of [`Device::read_state`].
    pub fn read_state_into(&mut self, index: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>, GpuError> {
        let tensor = self.tensor(index)?;
        let known = self.state.read.take();
        let staging = self.chunk(known, tensor.size(), wgpu::MapMode::Read)?;
        let block = &staging.blocks[0].buffer;
        bytes.clear();
        bytes.reserve_exact(tensor.size() as usize);
        while (bytes.len() as u64) < tensor.size() {
            let offset = bytes.len() as u64;
            let length = (tensor.size() - offset).min(CHUNK_BYTES);
            self.copy(&staging, (&tensor, offset), (block, 0), length)?;
            let view = block.get_mapped_range(..length).map_err(|error| self.blame("state", error))?;
            bytes.extend_from_slice(&view);
            drop(view);
            staging.unmap();
        }
        self.state.read = Some(staging);
        Ok(bytes)
    }

    /// Returns the bytes of a tensor of the state; none if it does not exist.
    fn state_bytes(&self, index: usize) -> Option<u64> {
        self.state.get(index).map(wgpu::Buffer::size)
    }

    /// Creates a tensor of the state unless it exists with that size.
    pub(crate) fn ensure_state(&mut self, index: usize, bytes: u64) -> Result<(), GpuError> {
        let what = format!("state {index}");
        if let Some(there) = self.state_bytes(index) {
            let message = || format!("{bytes} bytes wanted, it has {there}");
            return if there == bytes { Ok(()) } else { Err(GpuError::plan(what, message())) };
        }
        if bytes == 0 || !bytes.is_multiple_of(4) {
            return Err(GpuError::plan(what, format!("{bytes} bytes: not a multiple of 4")));
        }
        let buffer = self.create_storage(&what, bytes)?;
        if self.state.tensors.len() <= index {
            self.state.tensors.resize(index + 1, None);
        }
        self.state.tensors[index] = Some(buffer);
        Ok(())
    }

    fn tensor(&self, index: usize) -> Result<wgpu::Buffer, GpuError> {
        self.faults.check()?;
        let missing = || GpuError::plan(format!("state {index}"), "does not exist");
        self.state.get(index).cloned().ok_or_else(missing)
    }

    /// Returns staging of one block that takes a chunk of a tensor of so many bytes.
    fn chunk(&self, known: Option<Staging>, bytes: u64, mode: wgpu::MapMode) -> Result<Staging, GpuError> {
        let bytes = bytes.min(CHUNK_BYTES);
        match known.filter(|staging| staging.bytes() >= bytes) {
            Some(staging) => Ok(staging),
            None => {
                let slice = Slice { buffer: 0, offset: 0, bytes };
                Staging::new(self, &[Transfer { slot: 0, slice }], |_| false, mode)
            }
        }
    }

    /// Copies, and waits until that is done and the staging is mapped again.
    fn copy(
        &self,
        staging: &Staging,
        (from, from_offset): (&wgpu::Buffer, u64),
        (to, to_offset): (&wgpu::Buffer, u64),
        bytes: u64,
    ) -> Result<(), GpuError> {
        let mut encoder = self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from, from_offset, to, to_offset, bytes);
        staging.map_after(&encoder);
        let index = self.queue.submit([encoder.finish()]);
        self.faults.check()?;
        self.until(Some(&index), || staging.ready())
    }
}
