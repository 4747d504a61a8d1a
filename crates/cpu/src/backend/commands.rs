//! Records commands.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgpu::custom::{
    CommandBufferInterface, CommandEncoderInterface, ComputePassInterface, DispatchBindGroup, DispatchBuffer,
    DispatchCommandBuffer, DispatchComputePass, DispatchComputePipeline, DispatchQuerySet,
    DispatchRenderPass, DispatchTexture, DispatchTextureView,
};
use wgpu::{
    BufferAddress, BufferUsages, Extent3d, QUERY_RESOLVE_BUFFER_ALIGNMENT, TexelCopyBufferInfo,
    TexelCopyTextureInfo,
};

use crate::run::command::Command;
use crate::run::launch::{Bindings, Launch};
use crate::run::memory::Memory;

use super::errors::Errors;
use super::resources::{Buffer, Group, Pipeline, Queries};
use super::unused::Unused;

/// The most workgroups of a launch in each dimension. If workgroups have up to 256 invocations there, each of
/// these has a number of 32 bits. Launches of larger ones have fewer.
pub(super) const MOST_GROUPS: u32 = 1 << 24;

/// Commands that are being recorded.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    errors: Arc<Errors>,
    commands: Arc<Mutex<Vec<Command>>>,
    /// Whether something was asked for that is not valid. Then nothing of it runs.
    is_invalid: Arc<AtomicBool>,
    /// The number of passes that are still recorded.
    passes: Arc<AtomicU32>,
}

/// Commands that were recorded.
#[derive(Debug)]
pub(super) struct Recorded {
    commands: Mutex<Vec<Command>>,
    is_invalid: bool,
}

impl CommandBufferInterface for Recorded {}

impl Recorded {
    /// Returns the commands, or `None` if something of them is not valid.
    pub fn take(&self) -> Option<Vec<Command>> {
        let commands = std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner));
        (!self.is_invalid).then_some(commands)
    }
}

impl Encoder {
    pub fn new(errors: Arc<Errors>) -> Self {
        Self { errors, commands: Arc::default(), is_invalid: Arc::default(), passes: Arc::default() }
    }

    /// Reports that something is not valid, and runs nothing of what is recorded.
    fn invalid(&self, what: impl Into<String>) {
        self.is_invalid.store(true, Ordering::Relaxed);
        self.errors.invalid(what);
    }

    fn hold(&self) -> MutexGuard<'_, Vec<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory of a buffer, if these bytes may be used in this way.
    fn memory(
        &self,
        buffer: &DispatchBuffer,
        usage: BufferUsages,
        at: u64,
        bytes: u64,
    ) -> Option<Arc<Memory>> {
        let found = match buffer.as_custom::<Buffer>() {
            Some(own) => own.allows(usage, at, bytes).map(|()| Arc::clone(&own.memory)),
            None => Err("a buffer of another device".to_owned()),
        };
        found.map_err(|message| self.invalid(message)).ok()
    }

    /// Records a time. A query that is not there is an error.
    fn stamp(&self, queries: Option<&Queries>, at: u32) -> Option<Command> {
        let found = queries.filter(|queries| (at as usize) < queries.0.len());
        if found.is_none() {
            self.invalid(format!("there is no query {at}"));
        }
        found.map(|queries| Command::Stamp { to: Arc::clone(&queries.0), at })
    }

    fn no_textures(&self) {
        self.invalid("textures: not supported");
    }
}

impl CommandEncoderInterface for Encoder {
    fn copy_buffer_to_buffer(
        &self,
        source: &DispatchBuffer,
        source_offset: BufferAddress,
        destination: &DispatchBuffer,
        destination_offset: BufferAddress,
        copy_size: Option<BufferAddress>,
    ) {
        let rest =
            source.as_custom::<Buffer>().map_or(0, |buffer| buffer.bytes.saturating_sub(source_offset));
        let bytes = copy_size.unwrap_or(rest);
        let from = self.memory(source, BufferUsages::COPY_SRC, source_offset, bytes);
        let to = self.memory(destination, BufferUsages::COPY_DST, destination_offset, bytes);
        if let (Some(from), Some(to)) = (from, to) {
            if Arc::ptr_eq(&from, &to) {
                return self.invalid("a copy within one buffer");
            }
            let (from_at, to_at) = (source_offset, destination_offset);
            self.hold().push(Command::Copy { from, from_at, to, to_at, bytes });
        }
    }

    fn copy_buffer_to_texture(&self, _: TexelCopyBufferInfo<'_>, _: TexelCopyTextureInfo<'_>, _: Extent3d) {
        self.no_textures();
    }

    fn copy_texture_to_buffer(&self, _: TexelCopyTextureInfo<'_>, _: TexelCopyBufferInfo<'_>, _: Extent3d) {
        self.no_textures();
    }

    fn copy_texture_to_texture(&self, _: TexelCopyTextureInfo<'_>, _: TexelCopyTextureInfo<'_>, _: Extent3d) {
        self.no_textures();
    }

    fn begin_compute_pass(&self, descriptor: &wgpu::ComputePassDescriptor<'_>) -> DispatchComputePass {
        self.passes.fetch_add(1, Ordering::Relaxed);
        let mut pass =
            Pass { encoder: self.clone(), commands: Vec::new(), pipeline: None, bindings: None, end: None };
        if let Some(writes) = &descriptor.timestamp_writes {
            let queries = writes.query_set.as_custom::<Queries>();
            if let Some(at) = writes.beginning_of_pass_write_index {
                pass.commands.extend(self.stamp(queries, at));
            }
            if let Some(at) = writes.end_of_pass_write_index {
                pass.end = self.stamp(queries, at);
            }
        }
        DispatchComputePass::custom(pass)
    }

    fn begin_render_pass(&self, _: &wgpu::RenderPassDescriptor<'_>) -> DispatchRenderPass {
        self.invalid("render passes: not supported");
        DispatchRenderPass::custom(Unused)
    }

    fn finish(&mut self) -> DispatchCommandBuffer {
        if self.passes.load(Ordering::Relaxed) > 0 {
            self.invalid("a pass that has not ended");
        }
        let commands = std::mem::take(&mut *self.hold());
        let is_invalid = self.is_invalid.load(Ordering::Relaxed);
        DispatchCommandBuffer::custom(Recorded { commands: Mutex::new(commands), is_invalid })
    }

    fn clear_texture(&self, _: &DispatchTexture, _: &wgpu::ImageSubresourceRange) {
        self.no_textures();
    }

    fn clear_buffer(&self, buffer: &DispatchBuffer, offset: BufferAddress, size: Option<BufferAddress>) {
        let rest = buffer.as_custom::<Buffer>().map_or(0, |buffer| buffer.bytes.saturating_sub(offset));
        let bytes = size.unwrap_or(rest);
        if let Some(to) = self.memory(buffer, BufferUsages::COPY_DST, offset, bytes) {
            self.hold().push(Command::Clear { to, at: offset, bytes });
        }
    }

    fn insert_debug_marker(&self, _: &str) {}
    fn push_debug_group(&self, _: &str) {}
    fn pop_debug_group(&self) {}

    fn write_timestamp(&self, query_set: &DispatchQuerySet, query_index: u32) {
        let stamp = self.stamp(query_set.as_custom(), query_index);
        self.hold().extend(stamp);
    }

    fn resolve_query_set(
        &self,
        query_set: &DispatchQuerySet,
        first_query: u32,
        query_count: u32,
        destination: &DispatchBuffer,
        destination_offset: BufferAddress,
    ) {
        let bytes = 8 * u64::from(query_count);
        let usage = BufferUsages::QUERY_RESOLVE;
        let Some(to) = self.memory(destination, usage, destination_offset, bytes) else { return };
        let queries = query_set.as_custom::<Queries>();
        let end = first_query.checked_add(query_count);
        let found = queries.filter(|queries| end.is_some_and(|end| end as usize <= queries.0.len()));
        let Some(queries) = found else {
            return self.invalid(format!("there are not {query_count} queries from number {first_query} on"));
        };
        if !destination_offset.is_multiple_of(QUERY_RESOLVE_BUFFER_ALIGNMENT) {
            return self.invalid(format!("queries at byte {destination_offset}, which is not aligned"));
        }
        let from: Arc<[AtomicU64]> = Arc::clone(&queries.0);
        let (first, count, at) = (first_query, query_count, destination_offset);
        self.hold().push(Command::Fetch { from, first, count, to, at });
    }

    fn mark_acceleration_structures_built<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::Blas>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
        self.invalid("acceleration structures: not supported");
    }

    fn build_acceleration_structures<'a>(
        &self,
        _: &mut dyn Iterator<Item = &'a wgpu::BlasBuildEntry<'a>>,
        _: &mut dyn Iterator<Item = &'a wgpu::Tlas>,
    ) {
        self.invalid("acceleration structures: not supported");
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a DispatchTexture>>,
    ) {
    }
}

/// A pass that is being recorded.
#[derive(Debug)]
pub(super) struct Pass {
    encoder: Encoder,
    commands: Vec<Command>,
    pipeline: Option<(Arc<crate::compile::Program>, bool)>,
    bindings: Option<Arc<Bindings>>,
    /// The time at which it ends.
    end: Option<Command>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut all = self.encoder.hold();
        all.append(&mut self.commands);
        all.extend(self.end.take());
        drop(all);
        self.encoder.passes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ComputePassInterface for Pass {
    fn set_pipeline(&mut self, pipeline: &DispatchComputePipeline) {
        let own = pipeline.as_custom::<Pipeline>();
        self.pipeline = own.and_then(|own| Some((Arc::clone(&own.kernel.as_ref()?.1), own.clears)));
    }

    fn set_bind_group(&mut self, index: u32, group: Option<&DispatchBindGroup>, offsets: &[u32]) {
        if index > 0 || !offsets.is_empty() {
            self.encoder.invalid("several groups of bindings, or dynamic offsets: not supported");
        }
        self.bindings = group.and_then(|group| group.as_custom::<Group>()).and_then(|group| group.0.clone());
    }

    fn set_immediates(&mut self, _: u32, _: &[u8]) {
        self.encoder.invalid("immediates: not supported");
    }

    fn insert_debug_marker(&mut self, _: &str) {}
    fn push_debug_group(&mut self, _: &str) {}
    fn pop_debug_group(&mut self) {}

    fn write_timestamp(&mut self, query_set: &DispatchQuerySet, query_index: u32) {
        let stamp = self.encoder.stamp(query_set.as_custom(), query_index);
        self.commands.extend(stamp);
    }

    fn begin_pipeline_statistics_query(&mut self, _: &DispatchQuerySet, _: u32) {
        self.encoder.invalid("statistics of pipelines: not supported");
    }

    fn end_pipeline_statistics_query(&mut self) {}

    fn dispatch_workgroups(&mut self, x: u32, y: u32, z: u32) {
        let (Some((program, clears)), Some(bindings)) = (&self.pipeline, &self.bindings) else {
            return self.encoder.invalid("a launch without a pipeline or bindings");
        };
        let bound = |number: u32| bindings.bounds.get(number as usize).map_or(0, |bound| bound.bytes);
        if let Some(short) = program.bindings.iter().find(|binding| bound(binding.number) < binding.least) {
            let (number, least) = (short.number, short.least);
            let has = bound(number);
            return self.encoder.invalid(format!("binding {number} has {has} bytes and needs {least}"));
        }
        if let Some(message) = bindings.clash(program) {
            return self.encoder.invalid(message);
        }
        if [x, y, z].iter().any(|groups| *groups > MOST_GROUPS) {
            let most = format!("{x}, {y}, {z} workgroups: more than {MOST_GROUPS} in a dimension");
            return self.encoder.invalid(most);
        }
        for (groups, own) in [x, y, z].into_iter().zip(program.size) {
            if u64::from(groups) * u64::from(own) > 1 << 32 {
                let many = format!("{groups} workgroups of {own} invocations: more than 2^32 in a dimension");
                return self.encoder.invalid(many);
            }
        }
        if x > 0 && y > 0 && z > 0 {
            self.commands.push(Command::Launch(Launch {
                program: Arc::clone(program),
                bindings: Arc::clone(bindings),
                groups: [x, y, z],
                clears: *clears,
            }));
        }
    }

    fn dispatch_workgroups_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {
        self.encoder.invalid("indirect launches: not supported");
    }

    fn transition_resources<'a>(
        &mut self,
        _: &mut dyn Iterator<Item = wgpu::wgt::BufferTransition<&'a DispatchBuffer>>,
        _: &mut dyn Iterator<Item = wgpu::wgt::TextureTransition<&'a DispatchTextureView>>,
    ) {
    }
}
