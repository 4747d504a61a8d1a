//! The device: makes everything else.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use naga::valid::Capabilities;
use wgpu::custom::*;
use wgpu::wgt::PollType;
use wgpu::{ErrorFilter, PollError, PollStatus};

use crate::compile::{Bound, MOST_BINDING, Mode, Target};
use crate::kernels::Kernels;
use crate::native::Rounding;
use crate::run::launch::Bindings;
use crate::run::memory::Memory;
use crate::run::timeline::{Timeline, Waited};

use super::commands::Encoder;
use super::errors::Errors;
use super::resources::{Buffer, Group, Layout, Pipeline, Queries, Shader};
use super::unused::Unused;

/// The alignment of what is bound, in bytes.
pub(super) const ALIGNMENT: u32 = 64;

/// A device.
pub(super) struct Device {
    pub info: wgpu::AdapterInfo,
    pub features: wgpu::Features,
    pub limits: wgpu::Limits,
    pub errors: Arc<Errors>,
    pub timeline: Arc<Timeline>,
    pub lost: Mutex<Option<BoxDeviceLostCallback>>,
    pub is_destroyed: Arc<AtomicBool>,
    /// The CPU that kernels are compiled for.
    pub target: Target,
    pub rounding: Rounding,
    pub kernels: Kernels,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.info.name)
    }
}

impl Device {
    fn unsupported(&self, what: &str) {
        self.errors.invalid(format!("{what}: not supported"));
    }

    /// Tells that the device is lost, once.
    fn lose(&self, reason: wgpu::DeviceLostReason, message: &str) {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lost) = lost {
            lost(reason, message.to_owned());
        }
    }

    /// Returns what kernels may use beyond WGSL's core.
    fn extensions(&self) -> Capabilities {
        let mut enabled = Capabilities::empty();
        enabled.set(Capabilities::SHADER_FLOAT16, self.features.contains(wgpu::Features::SHADER_F16));
        enabled.set(Capabilities::SHADER_INT64, self.features.contains(wgpu::Features::SHADER_INT64));
        enabled
    }

    /// Returns the memory of a buffer; an empty one if there is none.
    fn memory(&self, bytes: u64) -> Option<Arc<Memory>> {
        if bytes > self.limits.max_buffer_size {
            self.errors
                .invalid(format!("a buffer of {bytes} bytes: more than {}", self.limits.max_buffer_size));
            return Memory::new(0).map(Arc::new);
        }
        Memory::new(bytes).map(Arc::new).or_else(|| {
            self.errors.out_of_memory(format!("a buffer of {bytes} bytes"));
            Memory::new(0).map(Arc::new)
        })
    }
}

impl DeviceInterface for Device {
    fn features(&self) -> wgpu::Features {
        self.features
    }

    fn limits(&self) -> wgpu::Limits {
        self.limits.clone()
    }

    fn adapter_info(&self) -> wgpu::AdapterInfo {
        self.info.clone()
    }

    fn create_shader_module(
        &self,
        descriptor: wgpu::ShaderModuleDescriptor<'_>,
        checks: wgpu::ShaderRuntimeChecks,
    ) -> DispatchShaderModule {
        let module = match descriptor.source {
            wgpu::ShaderSource::Wgsl(wgsl) => self.kernels.module(&wgsl, self.extensions()),
            _ => Err("shaders that are not WGSL: not supported".to_owned()),
        };
        let module = module.map_err(|message| self.errors.invalid(message)).ok();
        DispatchShaderModule::custom(Shader { module, checked: checks.bounds_checks })
    }

    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn create_shader_module_passthrough(
        &self,
        _: &wgpu::ShaderModuleDescriptorPassthrough<'_>,
    ) -> DispatchShaderModule {
        self.unsupported("shaders that are not WGSL");
        DispatchShaderModule::custom(Shader { module: None, checked: true })
    }

    fn create_bind_group_layout(
        &self,
        descriptor: &wgpu::BindGroupLayoutDescriptor<'_>,
    ) -> DispatchBindGroupLayout {
        let layout = Layout::of(descriptor.entries);
        DispatchBindGroupLayout::custom(layout.unwrap_or_else(|message| {
            self.errors.invalid(message);
            Layout::default()
        }))
    }

    fn create_bind_group(&self, descriptor: &wgpu::BindGroupDescriptor<'_>) -> DispatchBindGroup {
        let mut all = Bindings::default();
        let mut is_valid = true;
        for entry in descriptor.entries {
            let wgpu::BindingResource::Buffer(binding) = &entry.resource else {
                self.unsupported("what is bound and no buffer");
                is_valid = false;
                continue;
            };
            let Some(own) = binding.buffer.as_custom::<Buffer>() else {
                self.unsupported("a buffer of another device");
                is_valid = false;
                continue;
            };
            let (number, offset) = (entry.binding, binding.offset);
            let rest = own.bytes.saturating_sub(offset);
            let bytes = binding.size.map_or(rest, std::num::NonZero::get);
            let most = self.limits.max_storage_buffer_binding_size;
            let is_aligned = offset.is_multiple_of(ALIGNMENT.into());
            let is_usable = own.usage.intersects(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::UNIFORM);
            if bytes > rest.min(most) || number > MOST_BINDING || !is_aligned || !is_usable {
                let message = format!("binding {number}: {bytes} bytes from {offset} on cannot be bound");
                self.errors.invalid(message);
                is_valid = false;
                continue;
            }
            all.bind(number, Bound { start: own.memory.at(offset), bytes }, Arc::clone(&own.memory));
        }
        DispatchBindGroup::custom(Group(is_valid.then(|| Arc::new(all))))
    }

    fn create_pipeline_layout(
        &self,
        descriptor: &wgpu::PipelineLayoutDescriptor<'_>,
    ) -> DispatchPipelineLayout {
        let first = descriptor.bind_group_layouts.first().copied().flatten();
        let layout = first.and_then(|layout| layout.as_custom::<Layout>());
        DispatchPipelineLayout::custom(layout.cloned().unwrap_or_default())
    }

    fn create_render_pipeline(&self, _: &wgpu::RenderPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        self.unsupported("render pipelines");
        DispatchRenderPipeline::custom(Unused)
    }

    fn create_mesh_pipeline(&self, _: &wgpu::MeshPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        self.unsupported("render pipelines");
        DispatchRenderPipeline::custom(Unused)
    }

    fn create_compute_pipeline(
        &self,
        descriptor: &wgpu::ComputePipelineDescriptor<'_>,
    ) -> DispatchComputePipeline {
        let options = &descriptor.compilation_options;
        let clears = options.zero_initialize_workgroup_memory;
        if !options.constants.is_empty() {
            self.unsupported("constants of pipelines");
        }
        let own = descriptor.module.as_custom::<Shader>();
        let kernel = own.and_then(|own| {
            let module = Arc::clone(own.module.as_ref()?);
            let mode = Mode { checked: own.checked, rounding: self.rounding };
            let program = self.kernels.program(&module, descriptor.entry_point, mode, self.target);
            let program = program.and_then(|program| {
                let layout = descriptor.layout.and_then(|layout| layout.as_custom::<Layout>());
                layout.map_or(Ok(()), |layout| layout.allows(&program.bindings)).map(|()| program)
            });
            program.map(|program| (module, program)).map_err(|message| self.errors.invalid(message)).ok()
        });
        DispatchComputePipeline::custom(Pipeline { kernel, clears })
    }

    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn create_pipeline_cache(&self, _: &wgpu::PipelineCacheDescriptor<'_>) -> DispatchPipelineCache {
        self.unsupported("caches of pipelines");
        DispatchPipelineCache::custom(Unused)
    }

    fn create_buffer(&self, descriptor: &wgpu::BufferDescriptor<'_>) -> DispatchBuffer {
        let (progress, errors) = (self.timeline.progress().clone(), Arc::clone(&self.errors));
        match self.memory(descriptor.size) {
            Some(memory) => {
                if descriptor.mapped_at_creation {
                    memory.ask(true);
                }
                let (bytes, usage) = (descriptor.size.min(memory.bytes()), descriptor.usage);
                DispatchBuffer::custom(Buffer { memory, bytes, usage, progress, errors })
            }
            None => DispatchBuffer::custom(Unused),
        }
    }

    fn create_texture(&self, _: &wgpu::TextureDescriptor<'_>) -> DispatchTexture {
        self.unsupported("textures");
        DispatchTexture::custom(Unused)
    }

    fn create_external_texture(
        &self,
        _: &wgpu::ExternalTextureDescriptor<'_>,
        _: &[&wgpu::TextureView],
    ) -> DispatchExternalTexture {
        self.unsupported("textures");
        DispatchExternalTexture::custom(Unused)
    }

    fn create_blas(
        &self,
        _: &wgpu::CreateBlasDescriptor<'_>,
        _: wgpu::BlasGeometrySizeDescriptors,
    ) -> (Option<u64>, DispatchBlas) {
        self.unsupported("acceleration structures");
        (None, DispatchBlas::custom(Unused))
    }

    fn create_tlas(&self, _: &wgpu::CreateTlasDescriptor<'_>) -> DispatchTlas {
        self.unsupported("acceleration structures");
        DispatchTlas::custom(Unused)
    }

    fn create_sampler(&self, _: &wgpu::SamplerDescriptor<'_>) -> DispatchSampler {
        self.unsupported("samplers");
        DispatchSampler::custom(Unused)
    }

    fn create_query_set(&self, descriptor: &wgpu::QuerySetDescriptor<'_>) -> DispatchQuerySet {
        if !matches!(descriptor.ty, wgpu::QueryType::Timestamp) {
            self.unsupported("queries of no timestamps");
        }
        let (count, most) = (descriptor.count, wgpu::QUERY_SET_MAX_QUERIES);
        if count > most {
            self.errors.invalid(format!("{count} queries in a set: more than {most}"));
        }
        DispatchQuerySet::custom(Queries((0..count.min(most)).map(|_| AtomicU64::new(0)).collect()))
    }

    fn create_command_encoder(&self, _: &wgpu::CommandEncoderDescriptor<'_>) -> DispatchCommandEncoder {
        DispatchCommandEncoder::custom(Encoder::new(Arc::clone(&self.errors)))
    }

    fn create_render_bundle_encoder(
        &self,
        _: &wgpu::RenderBundleEncoderDescriptor<'_>,
    ) -> DispatchRenderBundleEncoder {
        self.unsupported("render bundles");
        DispatchRenderBundleEncoder::custom(Unused)
    }

    fn set_device_lost_callback(&self, callback: BoxDeviceLostCallback) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(callback);
    }

    fn on_uncaptured_error(&self, handler: Arc<dyn wgpu::UncapturedErrorHandler>) {
        self.errors.handle(handler);
    }

    fn push_error_scope(&self, filter: ErrorFilter) -> u32 {
        self.errors.push(filter)
    }

    fn pop_error_scope(&self, index: u32) -> Pin<Box<dyn PopErrorScopeFuture>> {
        Box::pin(std::future::ready(self.errors.pop(index)))
    }

    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn start_graphics_debugger_capture(&self) {}

    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn stop_graphics_debugger_capture(&self) {}

    fn poll(&self, how: PollType<u64>) -> Result<PollStatus, PollError> {
        let (is_wait, number, timeout) = match how {
            PollType::Wait { submission_index, timeout } => (true, submission_index, timeout),
            PollType::Poll => (false, None, Some(std::time::Duration::ZERO)),
        };
        match self.timeline.wait(number, timeout) {
            Waited::Dead => {
                self.lose(wgpu::DeviceLostReason::Unknown, "there is no memory for a workgroup");
                Ok(PollStatus::Poll)
            }
            Waited::Empty => Ok(PollStatus::QueueEmpty),
            Waited::Done if is_wait => Ok(PollStatus::WaitSucceeded),
            Waited::Timeout if is_wait => Err(PollError::Timeout),
            _ => Ok(PollStatus::Poll),
        }
    }

    fn get_internal_counters(&self) -> wgpu::InternalCounters {
        wgpu::InternalCounters::default()
    }

    fn generate_allocator_report(&self) -> Option<wgpu::AllocatorReport> {
        None
    }

    fn destroy(&self) {
        self.is_destroyed.store(true, Ordering::Relaxed);
        self.lose(wgpu::DeviceLostReason::Destroyed, "the device was destroyed");
    }
}
