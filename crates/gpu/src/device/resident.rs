//! Resident memory: rows of samples that stay on the device from one step to the next, until it is dropped.

use std::collections::BTreeMap;

use crate::{Device, GpuError};

/// The resident memories of a device by number, which all its plans share.
#[derive(Debug, Default)]
pub(crate) struct Resident(BTreeMap<usize, wgpu::Buffer>);

impl Resident {
    /// Returns a memory, if it is there with that size.
    pub fn get(&self, number: usize, bytes: u64) -> Option<&wgpu::Buffer> {
        self.0.get(&number).filter(|buffer| buffer.size() == bytes)
    }

    pub fn bytes(&self) -> u64 {
        self.0.values().map(wgpu::Buffer::size).sum()
    }
}

impl Device {
    /// Creates a resident memory of zeros, unless it is there with that size. One of another size is
    /// replaced, and its contents are lost.
    pub(crate) fn ensure_resident(&mut self, number: usize, bytes: u64) -> Result<(), GpuError> {
        if self.resident.get(number, bytes).is_some() {
            return Ok(());
        }
        let what = format!("resident memory {number}");
        self.resident.0.remove(&number);
        // Launches that are bound to the old one bind anew.
        self.pool.generation += 1;
        self.fits(&what, bytes)?;
        let buffer = self.create_storage(&what, bytes)?;
        self.resident.0.insert(number, buffer);
        Ok(())
    }

    /// Drops all resident memories. The memory is free when [`Device::unbind`] was called for each plan that
    /// used them.
    pub fn drop_residents(&mut self) {
        if !self.resident.0.is_empty() {
            self.resident.0.clear();
            self.pool.generation += 1;
        }
    }
}
