//! Downloads that stay where the device left them: whoever keeps one reads it there, on any thread, and copies nothing.

use std::ops::Deref;
use std::sync::Arc;

use crate::fault::hold;
use crate::staging::Block;
use crate::{Device, GpuError};

/// The bytes of one download, in memory that the device wrote and the host has mapped. As long as one of them is kept, its device
/// runs nothing more: [`Device::submit`] is an error.
#[derive(Debug)]
pub struct Lent {
    // First: it is gone before the loan is.
    view: wgpu::BufferView,
    _loan: Arc<()>,
}

impl Lent {
    pub(crate) fn new(view: wgpu::BufferView, loan: &Loan) -> Self {
        Self { view, _loan: Arc::clone(&loan.token) }
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view
    }
}

/// Mapped memory of which parts may be lent.
#[derive(Debug)]
pub(crate) struct Loan {
    token: Arc<()>,
    pub blocks: Vec<Block>,
}

impl Loan {
    pub fn of(blocks: Vec<Block>) -> Self {
        Self { token: Arc::default(), blocks }
    }
}

impl Device {
    /// What was lent is unmapped as soon as nobody has kept it, and it is asked for.
    pub(crate) fn lend(&self, loan: Loan) {
        hold(&self.loans).push(loan);
        // What somebody keeps is no error before something is to run.
        let _ = self.take_back();
    }

    /// Unmaps what nobody reads any more; an error if something still is.
    pub(crate) fn take_back(&self) -> Result<(), GpuError> {
        let mut loans = hold(&self.loans);
        loans.retain_mut(|loan| {
            // Nobody has another token, and what they read they read before.
            let free = Arc::get_mut(&mut loan.token).is_some();
            if free {
                loan.blocks.iter().for_each(Block::unmap);
            }
            !free
        });
        if loans.is_empty() { Ok(()) } else { Err(GpuError::plan("downloads", "some are still lent")) }
    }
}
