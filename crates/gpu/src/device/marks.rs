//! Marks: how the host knows that the driver has computed what it reports as done.
//!
//! wgpu takes a Metal command buffer that failed for one that is done, and there each compute pass, and each
//! run of copies between two passes, is a command buffer that may fail alone. The ones behind it then go on
//! with what earlier steps have left in memory. So a copy behind the results would prove nothing about the
//! passes before it.
//!
//! Instead the device counts. Two words lie on it, the *count* of its passes and a *number*. Before each pass
//! a copy, in the run of copies there, brings the number that follows the count. The last launch of the pass
//! adds one to the count if the number is that. So the count stops for good at the first pass or run of
//! copies that was dropped, whichever submission it was in. Behind the downloads of each part the count
//! itself is copied into their staging memory, where it is greater than what an earlier use left there. The
//! host compares it with the number of passes that it recorded before it reads any of the downloads.
//!
//! A submission that downloads nothing, such as a write of the state, is part of the count as well: if it was
//! dropped, the next count that the host reads tells. So it is with what wgpu itself writes when a plan is
//! loaded (tables and params), which has a run of copies of its own: the last of its writes is the number.
//!
//! This takes for granted that commands are computed in their order within a command buffer, and that none is
//! computed behind one that failed. It does not prove that wgpu has cleared fresh memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use unisono_graph::plan::{Access, Kernel, Slice, Transfer};

use crate::device::STORAGE;
use crate::device::pipeline::{Compiled, Pipelines, Way};
use crate::device::staging::Staging;
use crate::{Device, GpuError};

/// The numbers from 1 up to this one are in memory. The number that follows a count c is c % NUMBERS + 1.
const NUMBERS: u32 = 4096;
/// The bytes of a word.
const WORD: u64 = 4;
/// The number's offset in the words, of which the count is the first.
const NUMBER: u64 = WORD;

/// The count of a device's passes.
#[derive(Debug)]
pub(crate) struct Marks {
    kernel: Arc<Compiled>,
    group: wgpu::BindGroup,
    /// The count and the number.
    words: wgpu::Buffer,
    numbers: wgpu::Buffer,
    /// The number of passes that were recorded so far. It wraps, as the count does.
    recorded: AtomicU32,
}

impl Marks {
    pub fn new(device: &Device, way: Way) -> Result<Self, GpuError> {
        let mut pipelines = Pipelines::new(way, 1);
        let kernel = pipelines.compile(&device.raw, &[kernel()])?.swap_remove(0);
        let numbers: Vec<u32> = (1..=NUMBERS).collect();
        let numbers = device.create_filled(
            "the marks",
            bytemuck::cast_slice(&numbers),
            wgpu::BufferUsages::COPY_SRC,
        )?;
        let words = device.create_filled("the marks", &[0; 2 * WORD as usize], STORAGE)?;
        let params = device.create_filled("the marks", &[0; 16], wgpu::BufferUsages::UNIFORM)?;
        let entries = [(0, &params), (1, &words)]
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
        let group = device.raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.layout,
            entries: &entries,
        });
        device.faults.check()?;
        Ok(Self { kernel, group, words, numbers, recorded: AtomicU32::new(0) })
    }

    /// Returns the number of passes that were recorded so far.
    pub fn recorded(&self) -> u32 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Returns the memory from which a copy brings the number that the next pass is to find, with the offset.
    pub fn number(&self) -> ((&wgpu::Buffer, u64), (&wgpu::Buffer, u64), u64) {
        let at = u64::from(self.recorded() % NUMBERS) * WORD;
        ((&self.numbers, at), (&self.words, NUMBER), WORD)
    }

    /// Has a write of wgpu's own bring that number, behind all such writes so far.
    pub fn write_number(&self, queue: &wgpu::Queue) {
        let number = self.recorded() % NUMBERS + 1;
        queue.write_buffer(&self.words, NUMBER, &number.to_le_bytes());
    }

    /// Records the last launch of a pass.
    pub fn launch(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.kernel.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }

    /// Counts a pass that was recorded.
    pub fn count(&self) {
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the copy of the count to staging memory.
    pub fn stamp<'a>(
        &'a self,
        to: &'a wgpu::Buffer,
        offset: u64,
    ) -> ((&'a wgpu::Buffer, u64), (&'a wgpu::Buffer, u64), u64) {
        ((&self.words, 0), (to, offset), WORD)
    }

    /// Returns the transfer that reserves a place for the count in staging memory.
    pub fn transfer() -> Transfer {
        Transfer { slot: 0, slice: Slice { buffer: usize::MAX, offset: 0, bytes: WORD } }
    }
}

impl Device {
    /// Returns the transfer for the count, if the device counts, which comes behind all others.
    pub(crate) fn count_transfer(&self) -> Option<Transfer> {
        self.marks.as_ref().map(|_| Marks::transfer())
    }

    /// Checks that the device has counted so many passes when it filled this staging memory, which is mapped.
    pub(crate) fn check_count(&self, staging: &Staging, expected: u32) -> Result<(), GpuError> {
        let (Some(_), Some(&Some((block, offset)))) = (&self.marks, staging.places.last()) else {
            return Ok(());
        };
        let view = staging.blocks[block].buffer.get_mapped_range(offset..offset + WORD);
        let view = view.map_err(|error| self.blame("the marks", error))?;
        let counted = view.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        drop(view);
        if counted != expected {
            self.faults.lose(&format!(
                "the driver reported commands as done that it had dropped (pass {expected} is behind, the \
                 device has counted {counted})"
            ));
        }
        self.faults.check()
    }
}

/// The kernel that counts a pass.
fn kernel() -> Kernel {
    let wgsl = format!(
        "@group(0) @binding(1) var<storage, read_write> words: array<u32, 2>;
@compute @workgroup_size(1)
fn main() {{
    if words[1] == words[0] % {NUMBERS}u + 1u {{
        words[0] = words[0] + 1u;
    }}
}}"
    );
    Kernel { name: "marks".to_owned(), wgsl, bindings: vec![Access::ReadWrite] }
}
