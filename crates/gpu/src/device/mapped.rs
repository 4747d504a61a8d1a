//! Mapped downloads: they stay where the device wrote them, and are read there on any thread, without a copy.

use std::ops::Deref;
use std::sync::Arc;

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
