//! Scratch memory that all plans of a device share, since plans never run at the same time.
//!
//! A plan's scratch buffers, largest first, take the pool's buffers, largest first. So a plan that needs no
//! more than the plans before it needs nothing new, and its buffers stay separate, which keeps barriers few.

use std::cmp::Reverse;

use unisono_graph::plan::{Plan, Role};

use crate::device::record::Recorder;
use crate::{Device, GpuError};

#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The buffers, the largest first.
    buffers: Vec<wgpu::Buffer>,
    /// A number that changes whenever a buffer is replaced: bind groups of an older generation must be made
    /// again.
    pub generation: u64,
}

impl Pool {
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(wgpu::Buffer::size).sum()
    }

    pub fn get(&self, rank: usize) -> Option<&wgpu::Buffer> {
        self.buffers.get(rank)
    }
}

/// Returns for each scratch buffer of the plan its rank in the pool, and none for the others.
pub(crate) fn ranks(plan: &Plan) -> Vec<Option<usize>> {
    let mut scratch: Vec<usize> = Vec::new();
    scratch.extend((0..plan.buffers.len()).filter(|&id| plan.buffers[id].role == Role::Scratch));
    scratch.sort_by_key(|&id| Reverse(plan.buffers[id].bytes));
    let mut ranks = vec![None; plan.buffers.len()];
    for (rank, id) in scratch.into_iter().enumerate() {
        ranks[id] = Some(rank);
    }
    ranks
}

/// The bytes that a copy fills.
const FILL_BYTES: u64 = 1 << 20;

impl Device {
    /// Fills all scratch with a pattern of NaN, which is what a plan then reads wherever its commands were
    /// not run: scratch keeps nothing from one step to the next, and what an earlier step left there would
    /// look like a result. No commands of a plan may be in flight.
    ///
    /// # Errors
    /// What went wrong on the device before, or does now.
    pub fn poison_scratch(&self) -> Result<(), GpuError> {
        let pattern = vec![0xff; FILL_BYTES as usize];
        let filled = self.create_filled("a pattern", &pattern, wgpu::BufferUsages::COPY_SRC)?;
        let mut recorder = Recorder::new(self);
        for buffer in &self.pool.buffers {
            for offset in (0..buffer.size()).step_by(FILL_BYTES as usize) {
                recorder.copy((&filled, 0), (buffer, offset), FILL_BYTES.min(buffer.size() - offset));
            }
        }
        self.queue.submit([recorder.finish()]);
        self.faults.check()
    }

    /// Grows the pool until buffers of these sizes, largest first, fit. What was in a buffer stays in it, so
    /// that plans may be loaded in the middle of another plan's step. If there is no memory for all of them,
    /// the pool stays as it was.
    pub(crate) fn grow_pool(&mut self, sizes: &[u64]) -> Result<(), GpuError> {
        let have = |rank: usize| self.pool.get(rank).map_or(0, wgpu::Buffer::size);
        let more = sizes.iter().enumerate().map(|(rank, &bytes)| bytes.saturating_sub(have(rank)));
        self.fits("the plan's scratch", more.fold(0, u64::saturating_add))?;
        let mut grown = Vec::new();
        for (rank, &bytes) in sizes.iter().enumerate() {
            let old = self.pool.buffers.get(rank);
            if old.is_some_and(|old| old.size() >= bytes) {
                continue;
            }
            grown.push((rank, self.create_storage("scratch", bytes)?));
        }
        let old = |rank: usize| self.pool.get(rank);
        if grown.iter().any(|(rank, _)| old(*rank).is_some()) {
            let mut recorder = Recorder::new(self);
            for (rank, new) in &grown {
                if let Some(old) = old(*rank) {
                    recorder.copy((old, 0), (new, 0), old.size());
                }
            }
            self.queue.submit([recorder.finish()]);
        }
        for (rank, new) in grown {
            match self.pool.buffers.get_mut(rank) {
                Some(old) => {
                    *old = new;
                    self.pool.generation += 1;
                }
                None => self.pool.buffers.push(new),
            }
        }
        self.faults.check()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Backend, adapters};

    use super::*;

    #[test]
    fn a_pool_that_cannot_grow_stays_as_it_was() {
        for adapter in adapters(&[Backend::Vulkan, Backend::Metal, Backend::Dx12]) {
            let mut device = Device::open(&adapter).unwrap();
            device.grow_pool(&[256]).unwrap();
            let (generation, too_large) = (device.pool.generation, device.adapter.limits.buffer_bytes + 1);
            assert!(device.grow_pool(&[1024, too_large]).is_err());
            assert_eq!((device.pool.bytes(), device.pool.generation), (256, generation));
        }
    }
}
