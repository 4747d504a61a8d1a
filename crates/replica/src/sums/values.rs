//! The numbers that a worker hands over: mapped where its device left them, or in memory of their own.

use std::ops::Deref;
use std::sync::Arc;

use unisono_gpu::MappedDownload;

/// Numbers that a device computed. Mapped ones are given back before their worker is ordered to run anything.
#[derive(Debug)]
pub(crate) enum Values {
    Mapped(MappedDownload),
    Own(Vec<f32>),
}

impl Values {
    pub fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
    }

    /// Returns a copy in memory of its own.
    pub fn copy(&self, memory: &mut HostMemory) -> Self {
        let mut own = memory.take(self.len());
        own.copy_from_slice(self);
        Self::Own(own)
    }
}

impl From<MappedDownload> for Values {
    fn from(mapped: MappedDownload) -> Self {
        match bytemuck::try_cast_slice::<u8, f32>(&mapped) {
            Ok(_) => Self::Mapped(mapped),
            // The driver has mapped at an address that is not aligned for f32.
            Err(_) => Self::Own(bytemuck::pod_collect_to_vec(&mapped)),
        }
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Mapped(mapped) => bytemuck::try_cast_slice(mapped).unwrap_or_default(),
            Self::Own(values) => values,
        }
    }
}

/// The host's threads for sums, and memory that the next step uses again: allocating large memory anew takes
/// long.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    pub threads: usize,
    free: Vec<Arc<Vec<f32>>>,
}

impl HostMemory {
    pub fn new() -> Self {
        Self { threads: std::thread::available_parallelism().map_or(1, usize::from), free: Vec::new() }
    }

    /// Returns memory of so many numbers, which is either no longer read or new.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let free = self.free.iter().position(|values| values.len() == len && Arc::strong_count(values) == 1);
        let free = free.map(|at| self.free.swap_remove(at));
        free.and_then(|values| Arc::try_unwrap(values).ok()).unwrap_or_else(|| vec![0.0; len])
    }

    /// Keeps the memory that a step used, and nothing else.
    pub fn keep(&mut self, sums: Vec<Arc<Vec<f32>>>, copies: impl Iterator<Item = Values>) {
        let own = |values| match values {
            Values::Own(values) => Some(Arc::new(values)),
            Values::Mapped(_) => None,
        };
        self.free = sums;
        self.free.extend(copies.filter_map(own));
    }
}
