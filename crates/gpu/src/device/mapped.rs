//! Transfers without a copy: downloads stay where the device wrote them and are read there on any thread, and
//! uploads are written where the device reads them, before their segment is submitted.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::device::fault::hold;
use crate::device::staging::Block;
use crate::{Device, GpuError};

/// The bytes of one download, in memory that the device wrote and the host has mapped. As long as one of them
/// is kept, its device runs nothing more: [`Device::submit`] is an error.
#[derive(Debug)]
pub struct MappedDownload {
    // The first field, so that it is dropped before the token.
    view: wgpu::BufferView,
    _loan: Arc<()>,
}

impl MappedDownload {
    pub(crate) fn new(view: wgpu::BufferView, mapping: &Mapping) -> Self {
        Self { view, _loan: Arc::clone(&mapping.token) }
    }
}

impl Deref for MappedDownload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view
    }
}

/// Mapped memory, parts of which may be read as [`MappedDownload`]s.
#[derive(Debug)]
pub(crate) struct Mapping {
    token: Arc<()>,
    pub blocks: Vec<Block>,
}

impl Mapping {
    pub fn of(blocks: Vec<Block>) -> Self {
        Self { token: Arc::default(), blocks }
    }
}

/// The memory of one upload, to be filled on any threads while the device works ([`Device::lend_uploads`]).
/// As long as it is kept, its segment cannot be submitted.
#[derive(Debug)]
pub struct MappedUpload {
    // The first field, so that it is dropped before the loan.
    view: wgpu::BufferViewMut,
    loan: Arc<Loan>,
}

/// The memory of an upload that was lent.
#[derive(Debug)]
pub(crate) struct Loan {
    /// The number of the upload among those of its segment.
    upload: usize,
    bytes: u64,
    /// The number of bytes that were written.
    written: AtomicUsize,
    /// Whether a write did not fit.
    is_spoilt: AtomicBool,
}

/// A part of the memory of a [`MappedUpload`], which is written from front to back.
#[derive(Debug)]
pub struct UploadPart<'a> {
    rest: wgpu::WriteOnly<'a, [u8]>,
    loan: &'a Loan,
}

// SAFETY: a part is the only access to its bytes, which any thread may write. wgpu says so of `WriteOnly`
// too, though for sized types alone.
#[expect(unsafe_code, reason = "parts of one upload are written by several threads")]
unsafe impl Send for UploadPart<'_> {}

impl Loan {
    /// Returns the number of the upload, if all of it was written; an error if its memory is still kept.
    pub fn end(this: &mut Arc<Self>) -> Result<Option<usize>, GpuError> {
        let loan = Arc::get_mut(this).ok_or_else(|| GpuError::plan("uploads", "some are still kept"))?;
        let is_written = *loan.written.get_mut() as u64 == loan.bytes && !*loan.is_spoilt.get_mut();
        Ok(is_written.then_some(loan.upload))
    }
}

impl MappedUpload {
    pub(crate) fn new(view: wgpu::BufferViewMut, upload: usize, bytes: u64) -> (Self, Arc<Loan>) {
        let loan = Loan { upload, bytes, written: AtomicUsize::new(0), is_spoilt: AtomicBool::new(false) };
        let loan = Arc::new(loan);
        (Self { view, loan: Arc::clone(&loan) }, loan)
    }

    /// Returns all of the memory, to be written. Nothing of it may have been written before.
    pub fn part(&mut self) -> UploadPart<'_> {
        UploadPart { rest: self.view.slice(..), loan: &self.loan }
    }
}

impl<'a> UploadPart<'a> {
    /// Divides it: returns the first bytes of what is still to be written, and keeps the rest. If there are
    /// not so many, it returns all.
    #[must_use]
    pub fn split_off(&mut self, bytes: usize) -> UploadPart<'a> {
        let first = bytes.min(self.rest.len());
        UploadPart { rest: self.rest.split_off(..first).unwrap_or_default(), loan: self.loan }
    }

    /// Appends these bytes. If they do not fit, the upload does not count as written.
    pub fn write(&mut self, bytes: &[u8]) {
        match self.rest.split_off(..bytes.len()) {
            Some(mut place) => {
                place.copy_from_slice(bytes);
                self.loan.written.fetch_add(bytes.len(), Ordering::Release);
            }
            None => self.loan.is_spoilt.store(true, Ordering::Release),
        }
    }
}

impl Device {
    /// Keeps memory mapped for as long as a download refers to it. It is unmapped here or before the next
    /// submission.
    pub(crate) fn keep_mapped(&self, mapping: Mapping) {
        hold(&self.mappings).push(mapping);
        // A download that is still kept is an error only when something is to run.
        let _ = self.unmap_unread();
    }

    /// Unmaps all memory to which no download refers any more. Returns an error if a download is still kept.
    pub(crate) fn unmap_unread(&self) -> Result<(), GpuError> {
        let mut mappings = hold(&self.mappings);
        mappings.retain_mut(|mapping| {
            // No download has the token any more, so all of them were read and dropped.
            let free = Arc::get_mut(&mut mapping.token).is_some();
            if free {
                mapping.blocks.iter().for_each(Block::unmap);
            }
            !free
        });
        if mappings.is_empty() { Ok(()) } else { Err(GpuError::plan("downloads", "some are still kept")) }
    }
}
