//! Staging: host-visible memory through which a segment's transfers go, made once and mapped again after each
//! use.
//!
//! Where host and device share memory, large transfers need none: the host maps the kernels' buffer itself
//! (`map`).
//!
//! A block is either *mapped* (the host may touch it), *in flight* (the device may, and the map comes when it
//! is done) or *failed*. `submit` unmaps what it has filled and asks for the next map at once; a wait makes
//! the answer arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use unisono_graph::plan::Transfer;

use crate::{Device, GpuError};

const IN_FLIGHT: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

/// The bytes of the largest block, unless a single transfer is larger.
const BLOCK_BYTES: u64 = 256 << 20;
/// The alignment of the starts of mapped ranges, in bytes.
pub(crate) const ALIGNMENT: u64 = 8;

/// The staging memory of one segment in one direction.
#[derive(Debug)]
pub(crate) struct Staging {
    pub blocks: Vec<Block>,
    /// The block of each transfer and the offset in it; none where the host maps the transfer's buffer
    /// itself.
    pub places: Vec<Option<(usize, u64)>>,
    mode: wgpu::MapMode,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub buffer: wgpu::Buffer,
    state: Arc<AtomicU8>,
}

impl Staging {
    pub fn new(
        device: &Device,
        transfers: &[Transfer],
        is_shared: impl Fn(&Transfer) -> bool,
        mode: wgpu::MapMode,
    ) -> Result<Self, GpuError> {
        let most = BLOCK_BYTES.min(device.adapter.limits.buffer_bytes);
        let (sizes, places) = place(transfers, is_shared, most);
        let usage = match mode {
            wgpu::MapMode::Write => wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            wgpu::MapMode::Read => wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        };
        let writable = mode == wgpu::MapMode::Write;
        let state = if writable { MAPPED } else { IN_FLIGHT };
        let block = |bytes: u64| {
            let descriptor =
                wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: writable };
            let buffer = device.create("staging", &descriptor)?;
            Ok(Block { buffer, state: Arc::new(AtomicU8::new(state)) })
        };
        let blocks = sizes.into_iter().map(block).collect::<Result<Vec<_>, GpuError>>()?;
        Ok(Self { blocks, places, mode })
    }

    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.buffer.size()).sum()
    }

    /// Returns whether the host reads it.
    pub fn is_read(&self) -> bool {
        self.mode == wgpu::MapMode::Read
    }

    /// Returns whether all blocks are mapped; an error if one never will be.
    pub fn ready(&self) -> Result<bool, ()> {
        let states = || self.blocks.iter().map(|block| block.state.load(Ordering::Acquire));
        if states().any(|state| state == FAILED) {
            Err(())
        } else {
            Ok(states().all(|state| state == MAPPED))
        }
    }

    /// Unmaps the blocks, so that the device may use them.
    pub fn unmap(&self) {
        self.blocks.iter().for_each(Block::unmap);
    }

    /// Asks for the blocks to be mapped when these commands are done.
    pub fn map_after(&self, encoder: &wgpu::CommandEncoder) {
        for block in &self.blocks {
            encoder.map_buffer_on_submit(&block.buffer, self.mode, .., block.answer());
        }
    }
}

impl Device {
    /// Maps a buffer that kernels use, after the submissions up to `last` (none: all so far) are done. The
    /// caller unmaps it.
    pub(crate) fn map(
        &self,
        buffer: &wgpu::Buffer,
        mode: wgpu::MapMode,
        last: Option<&wgpu::SubmissionIndex>,
    ) -> Result<Block, GpuError> {
        let block = Block { buffer: buffer.clone(), state: Arc::new(AtomicU8::new(IN_FLIGHT)) };
        buffer.map_async(mode, .., block.answer());
        self.until(last, || match block.state.load(Ordering::Acquire) {
            FAILED => Err(()),
            state => Ok(state == MAPPED),
        })?;
        Ok(block)
    }
}

impl Block {
    pub fn unmap(&self) {
        self.buffer.unmap();
        self.state.store(IN_FLIGHT, Ordering::Release);
    }

    fn answer(&self) -> impl FnOnce(Result<(), wgpu::BufferAsyncError>) + Send + 'static {
        let state = Arc::clone(&self.state);
        move |result| state.store(if result.is_ok() { MAPPED } else { FAILED }, Ordering::Release)
    }
}

/// Returns the sizes of the blocks, and for each transfer that is not shared its block and offset.
fn place(
    transfers: &[Transfer],
    is_shared: impl Fn(&Transfer) -> bool,
    block_bytes: u64,
) -> (Vec<u64>, Vec<Option<(usize, u64)>>) {
    let mut sizes: Vec<u64> = Vec::new();
    let mut places = Vec::new();
    for transfer in transfers {
        if is_shared(transfer) {
            places.push(None);
            continue;
        }
        let bytes = transfer.slice.bytes;
        let offset = sizes.last().map(|used| used.next_multiple_of(ALIGNMENT));
        let offset = match offset.filter(|offset| offset + bytes <= block_bytes) {
            Some(offset) => offset,
            None => {
                sizes.push(0);
                0
            }
        };
        let block = sizes.len() - 1;
        sizes[block] = offset + bytes;
        places.push(Some((block, offset)));
    }
    (sizes, places)
}

/// Writes the bytes of one upload straight into memory that the device reads, from front to back.
#[derive(Debug)]
pub struct Writer<'a> {
    pub(crate) view: &'a mut wgpu::BufferViewMut,
    pub(crate) written: usize,
    /// Whether all of it was written where it was lent.
    pub(crate) is_written: bool,
}

impl Writer<'_> {
    /// Returns the bytes of the whole upload.
    pub fn bytes(&self) -> usize {
        self.view.len()
    }

    /// Returns the number of bytes that are still to be written.
    pub fn remaining(&self) -> usize {
        self.bytes().saturating_sub(self.written)
    }

    /// Keeps the bytes that were written where the upload was lent ([`Device::lend_uploads`]), in place of
    /// any [`Writer::write`]. If it was not lent for this submission, or not all of it was written, the
    /// submission is an error, and nothing runs.
    pub fn keep(&mut self) {
        if self.is_written {
            self.written = self.bytes();
        }
    }

    /// Appends these bytes. All writes together must be exactly [`Writer::bytes`] long; otherwise the
    /// submission is an error, and nothing runs.
    pub fn write(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.remaining() {
            self.view.slice(self.written..self.written + bytes.len()).copy_from_slice(bytes);
        }
        self.written = self.written.saturating_add(bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::Slice;

    use super::*;

    #[test]
    fn transfers_are_packed_into_blocks() {
        let transfer = |bytes| Transfer { slot: 0, slice: Slice { buffer: 0, offset: 0, bytes } };
        let is_shared = |transfer: &Transfer| transfer.slice.bytes == 40;
        let (sizes, places) = place(&[4, 8, 40, 100, 4, 300].map(transfer), is_shared, 112);
        assert_eq!(places, [Some((0, 0)), Some((0, 8)), None, Some((1, 0)), Some((1, 104)), Some((2, 0))]);
        assert_eq!(sizes, [16, 108, 300]);
        assert_eq!(place(&[], is_shared, 112), (Vec::new(), Vec::new()));
    }
}
