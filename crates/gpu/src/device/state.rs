//! The persistent state: tensors in buffers that all plans of a device share, read and written in bounded
//! chunks.

use unisono_graph::plan::{Slice, StateLayout, Transfer};

use crate::device::record::{Place, Recorder};
use crate::device::staging::Staging;
use crate::{Device, GpuError};

/// The most bytes that go to or from the host at once.
const CHUNK_BYTES: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct State {
    buffers: Vec<Option<wgpu::Buffer>>,
    /// The place of each tensor. A buffer that a plan brought holds one tensor, which has the same number.
    tensors: Vec<Option<Slice>>,
    /// The staging memory for writes, made on first use and replaced by larger ones up to [`CHUNK_BYTES`].
    write: Option<Staging>,
    /// The staging memory for reads, as for writes.
    read: Option<Staging>,
}

impl State {
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().flatten().map(wgpu::Buffer::size).sum()
    }

    /// Returns a buffer, which may hold several tensors.
    pub fn get(&self, buffer: usize) -> Option<&wgpu::Buffer> {
        self.buffers.get(buffer)?.as_ref()
    }

    fn tensor(&self, index: usize) -> Option<Tensor> {
        let Slice { buffer, offset, bytes } = (*self.tensors.get(index)?)?;
        Some(Tensor { buffer: self.get(buffer)?.clone(), offset, bytes })
    }
}

/// A tensor in its buffer.
struct Tensor {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
}

impl Device {
    /// Creates the buffers of the persistent state, all zero, and knows from then on where tensors 0, 1, ...
    /// lie in them. Buffers that exist are kept.
    ///
    /// # Errors
    /// [`GpuError::Limit`] or [`GpuError::OutOfMemory`], naming the buffer; [`GpuError::Plan`] if a buffer
    /// exists with another size, or a tensor lies outside of its buffer.
    pub fn create_state(&mut self, layout: &StateLayout) -> Result<(), GpuError> {
        self.create_some_state(layout, &|_| false)
    }

    /// Creates the buffers of the persistent state except for those that are `absent`, as
    /// [`Device::create_state`] does: another device has their tensors.
    ///
    /// # Errors
    /// As [`Device::create_state`].
    pub fn create_some_state(
        &mut self,
        layout: &StateLayout,
        absent: &dyn Fn(usize) -> bool,
    ) -> Result<(), GpuError> {
        let new = layout.buffers.iter().enumerate();
        let new = new.filter(|(index, _)| self.state.get(*index).is_none() && !absent(*index));
        self.fits("the state", new.map(|(_, &bytes)| bytes).fold(0, u64::saturating_add))?;
        for (index, slice) in layout.tensors.iter().enumerate() {
            let end = slice.offset.saturating_add(slice.bytes);
            if layout.buffers.get(slice.buffer).is_none_or(|&bytes| bytes < end) {
                let message = format!("ends at byte {end} of buffer {}, behind its end", slice.buffer);
                return Err(GpuError::plan(format!("state {index}"), message));
            }
        }
        for (buffer, &bytes) in layout.buffers.iter().enumerate().filter(|(buffer, _)| !absent(*buffer)) {
            self.ensure_state(buffer, bytes)?;
        }
        let there = |slice: &Slice| Some(*slice).filter(|slice| !absent(slice.buffer));
        self.state.tensors = layout.tensors.iter().map(there).collect();
        Ok(())
    }

    /// Sets a whole tensor of the state.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such tensor or it has another size; [`GpuError::Lost`];
    /// [`GpuError::Timeout`].
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let tensor = self.tensor(index)?;
        if tensor.bytes != bytes.len() as u64 {
            let message = format!("{} bytes given, {} wanted", bytes.len(), tensor.bytes);
            return Err(GpuError::plan(format!("state {index}"), message));
        }
        let known = self.state.write.take();
        let staging = self.chunk(known, tensor.bytes, wgpu::MapMode::Write)?;
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
            self.copy(&staging, (block, 0), (&tensor.buffer, tensor.offset + offset), length)?;
            offset += length;
        }
        self.state.write = Some(staging);
        Ok(())
    }

    /// Reads a whole tensor of the state.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such tensor; [`GpuError::OutOfMemory`] if the host has no memory for
    /// it; [`GpuError::Lost`]; [`GpuError::Timeout`].
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
        bytes.clear();
        if bytes.try_reserve_exact(tensor.bytes as usize).is_err() {
            let what = format!("the host's copy of state {index}");
            return Err(GpuError::OutOfMemory { what, bytes: tensor.bytes });
        }
        let known = self.state.read.take();
        let staging = self.chunk(known, tensor.bytes, wgpu::MapMode::Read)?;
        let block = &staging.blocks[0].buffer;
        while (bytes.len() as u64) < tensor.bytes {
            let offset = bytes.len() as u64;
            let length = (tensor.bytes - offset).min(CHUNK_BYTES);
            self.copy(&staging, (&tensor.buffer, tensor.offset + offset), (block, 0), length)?;
            let view = block.get_mapped_range(..length).map_err(|error| self.blame("state", error))?;
            bytes.extend_from_slice(&view);
            drop(view);
            staging.unmap();
        }
        self.state.read = Some(staging);
        Ok(bytes)
    }

    /// Creates a buffer of the state unless it exists with that size. It holds one tensor unless a layout
    /// says otherwise.
    pub(crate) fn ensure_state(&mut self, index: usize, bytes: u64) -> Result<(), GpuError> {
        let what = format!("state {index}");
        if let Some(there) = self.state.get(index).map(wgpu::Buffer::size) {
            let message = || format!("{bytes} bytes wanted, it has {there}");
            return if there == bytes { Ok(()) } else { Err(GpuError::plan(what, message())) };
        }
        if bytes == 0 || !bytes.is_multiple_of(4) {
            return Err(GpuError::plan(what, format!("{bytes} bytes: not a multiple of 4")));
        }
        let buffer = self.create_storage(&what, bytes)?;
        let State { buffers, tensors, .. } = &mut self.state;
        buffers.resize(buffers.len().max(index + 1), None);
        tensors.resize(tensors.len().max(index + 1), None);
        buffers[index] = Some(buffer);
        tensors[index] = tensors[index].or(Some(Slice { buffer: index, offset: 0, bytes }));
        Ok(())
    }

    fn tensor(&self, index: usize) -> Result<Tensor, GpuError> {
        self.faults.check()?;
        self.state.tensor(index).ok_or_else(|| GpuError::plan(format!("state {index}"), "does not exist"))
    }

    /// Returns staging of one block that takes a chunk of a tensor of so many bytes.
    fn chunk(&self, known: Option<Staging>, bytes: u64, mode: wgpu::MapMode) -> Result<Staging, GpuError> {
        let bytes = bytes.min(CHUNK_BYTES);
        // The count of passes is behind what is read.
        let room = |staging: &Staging| match staging.places.get(1) {
            Some(Some((_, offset))) => *offset,
            _ => staging.bytes(),
        };
        match known.filter(|staging| room(staging) >= bytes) {
            Some(staging) => Ok(staging),
            None => {
                let slice = Slice { buffer: 0, offset: 0, bytes };
                let count = self.count_transfer().filter(|_| mode == wgpu::MapMode::Read);
                let transfers: Vec<_> = std::iter::once(Transfer { slot: 0, slice }).chain(count).collect();
                Staging::new(self, &transfers, |_| false, mode)
            }
        }
    }

    /// Copies, and waits until that is done and the staging is mapped again.
    fn copy(&self, staging: &Staging, from: Place<'_>, to: Place<'_>, bytes: u64) -> Result<(), GpuError> {
        let mut recorder = Recorder::new(self);
        recorder.copy(from, to, bytes);
        let count = staging.is_read().then(|| recorder.stamp(staging));
        recorder.map(staging);
        let index = self.send(recorder.finish());
        self.faults.check()?;
        self.until(Some(&index), || staging.ready())?;
        count.map_or(Ok(()), |count| self.check_count(staging, count))
    }
}
