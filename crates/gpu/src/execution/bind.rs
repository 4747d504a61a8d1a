//! Binds launches: one uniform buffer for the params of all, and one bind group for each distinct set of
//! slices.

use std::collections::HashMap;
use std::sync::Arc;

use unisono_graph::plan::{Launch, Slice};

use crate::device::fault::scoped;
use crate::device::pipeline::Compiled;
use crate::{Device, GpuError};

use super::executable::Source;

/// The number of bytes of which the size of a bound uniform is a multiple, as GL requires.
const UNIFORM_STEP: usize = 16;

/// The distinct bind groups of a plan, as data from which they can be made again.
#[derive(Debug)]
pub(crate) struct Groups {
    params: wgpu::Buffer,
    all: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    kernel: usize,
    bindings: Vec<Slice>,
    /// The offset and the bytes in the uniform buffer.
    params: (u64, u64),
}

/// The bind groups of a plan. They are made again when the pool has changed.
#[derive(Debug)]
pub(crate) struct Bound {
    pub buffers: Vec<wgpu::Buffer>,
    pub groups: Vec<wgpu::BindGroup>,
    pub generation: u64,
}

impl Groups {
    /// Collects the bind groups of a plan. Returns them, and for each launch the index of its group.
    pub fn new<'a>(
        device: &Device,
        launches: impl Iterator<Item = &'a Launch>,
    ) -> Result<(Self, Vec<usize>), GpuError> {
        let mut params = Params::new(device.adapter.limits.uniform_alignment as usize);
        let mut known = HashMap::new();
        let mut all = Vec::new();
        let mut of_launch = Vec::new();
        for launch in launches {
            let params = params.place(&launch.params);
            let slices: Vec<_> =
                launch.bindings.iter().map(|slice| (slice.buffer, slice.offset, slice.bytes)).collect();
            let group = *known.entry((launch.kernel, slices, params)).or_insert_with(|| {
                all.push(Group { kernel: launch.kernel, bindings: launch.bindings.clone(), params });
                all.len() - 1
            });
            of_launch.push(group);
        }
        let params =
            device.create_filled("the launches' params", &params.bytes, wgpu::BufferUsages::UNIFORM)?;
        Ok((Self { params, all }, of_launch))
    }

    /// Returns a buffer that stands for one that is gone.
    pub fn stand_in(&self) -> wgpu::Buffer {
        self.params.clone()
    }

    /// Returns the kernel of each group.
    pub fn kernels(&self) -> impl Iterator<Item = usize> {
        self.all.iter().map(|group| group.kernel)
    }
}

/// The params of all launches, packed into one buffer. Equal ones are stored once.
struct Params {
    alignment: usize,
    bytes: Vec<u8>,
    known: HashMap<Vec<u32>, (u64, u64)>,
}

impl Params {
    fn new(alignment: usize) -> Self {
        Self { alignment: alignment.max(UNIFORM_STEP), bytes: vec![0; UNIFORM_STEP], known: HashMap::new() }
    }

    fn place(&mut self, words: &[u32]) -> (u64, u64) {
        if let Some(&place) = self.known.get(words) {
            return place;
        }
        let offset = self.bytes.len().next_multiple_of(self.alignment);
        let bytes = (words.len() * 4).next_multiple_of(UNIFORM_STEP).max(UNIFORM_STEP);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(bytemuck::cast_slice(words));
        self.bytes.resize(offset + bytes, 0);
        let place = (offset as u64, bytes as u64);
        self.known.insert(words.to_vec(), place);
        place
    }
}

impl Bound {
    pub fn new(
        device: &Device,
        kernels: &[Arc<Compiled>],
        sources: &[Source],
        groups: &Groups,
    ) -> Result<Self, GpuError> {
        let buffer = |source: &Source| match source {
            Source::Pool(rank) => device.pool.get(*rank).cloned(),
            Source::State(index) => device.state.get(*index).cloned(),
            Source::Resident(number, bytes) => device.resident.get(*number, *bytes).cloned(),
            Source::Own(buffer) => Some(buffer.clone()),
        };
        let buffers: Option<Vec<wgpu::Buffer>> = sources.iter().map(buffer).collect();
        let buffers = buffers.ok_or_else(|| GpuError::plan("the plan's buffers", "gone"))?;
        let group = |group: &Group| {
            let mut entries = vec![entry(0, &groups.params, group.params)];
            for (index, slice) in group.bindings.iter().enumerate() {
                entries.push(entry(index + 1, &buffers[slice.buffer], (slice.offset, slice.bytes)));
            }
            device.raw.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &kernels[group.kernel].layout,
                entries: &entries,
            })
        };
        let made =
            scoped(&device.raw, "the launches' bindings", 0, || groups.all.iter().map(group).collect())?;
        Ok(Self { buffers, groups: made, generation: device.pool.generation })
    }
}

fn entry(binding: usize, buffer: &wgpu::Buffer, (offset, bytes): (u64, u64)) -> wgpu::BindGroupEntry<'_> {
    let size = wgpu::BufferSize::new(bytes);
    let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
    wgpu::BindGroupEntry { binding: binding as u32, resource }
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::{Buffer, Command, Plan, Role, Segment};

    use super::*;
    use crate::{Backend, adapters};

    /// A plan that clears so many bytes of scratch.
    fn plan(bytes: u64) -> Plan {
        let clear = Command::Clear(Slice { buffer: 0, offset: 0, bytes });
        let buffers = vec![Buffer { bytes, role: Role::Scratch }];
        let segments = vec![Segment { commands: vec![clear], ..Segment::default() }];
        Plan { buffers, segments, ..Plan::default() }
    }

    #[test]
    fn a_plan_that_does_not_run_lets_go_of_scratch_that_was_replaced() {
        for adapter in adapters(&[Backend::Vulkan, Backend::Metal, Backend::Dx12]) {
            let mut device = Device::open(&adapter).unwrap();
            let mut small = device.load(&plan(1 << 10)).unwrap();
            let first = device.pool.get(0).cloned();
            device.load(&plan(1 << 12)).unwrap();
            assert_eq!(small.bound.buffers.first(), first.as_ref());
            device.unbind(&mut small);
            assert_eq!(small.bound.buffers.first(), device.pool.get(0));
            assert_ne!(small.bound.buffers.first(), first.as_ref());
            device.run(&mut small, 0, &mut |_, _| (), &mut |_, _| ()).unwrap();
            assert_eq!(small.bound.generation, device.pool.generation);
        }
    }
}
