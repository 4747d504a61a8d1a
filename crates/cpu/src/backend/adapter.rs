//! The adapter.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use wgpu::custom::{AdapterInterface, DispatchDevice, DispatchQueue, DispatchSurface, RequestDeviceFuture};
use wgpu::{Backend, DeviceType, Features, Limits, RequestDeviceError};

use crate::compile::{MOST_LANES, MOST_SHARED, Target};
use crate::kernels;
use crate::native::{Vectors, has_fma, vectors};
use crate::options::Options;
use crate::run::timeline::Timeline;

use super::commands::MOST_GROUPS;
use super::device::{ALIGNMENT, Device};
use super::errors::Errors;
use super::queue::Queue;

/// The CPU as an adapter.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub options: Options,
    /// The CPU that kernels are compiled for.
    pub target: Target,
}

fn features() -> Features {
    Features::TIMESTAMP_QUERY | Features::SHADER_INT64 | Features::SHADER_F16
}

fn limits() -> Limits {
    Limits {
        max_buffer_size: 1 << 40,
        max_storage_buffer_binding_size: u64::from(u32::MAX) & !3,
        max_uniform_buffer_binding_size: 64 << 10,
        max_bindings_per_bind_group: 1000,
        max_storage_buffers_per_shader_stage: 64,
        max_uniform_buffers_per_shader_stage: 16,
        max_buffers_and_acceleration_structures_per_shader_stage: 80,
        max_compute_workgroup_storage_size: MOST_SHARED,
        max_compute_invocations_per_workgroup: MOST_LANES,
        max_compute_workgroup_size_x: MOST_LANES,
        max_compute_workgroup_size_y: MOST_LANES,
        max_compute_workgroup_size_z: MOST_LANES,
        max_compute_workgroups_per_dimension: MOST_GROUPS,
        min_storage_buffer_offset_alignment: ALIGNMENT,
        min_uniform_buffer_offset_alignment: ALIGNMENT,
        ..Limits::default()
    }
}

/// Returns the name of the vector instructions that native code uses. Results do not depend on them. Results
/// of probes are cached by the driver's text, so each kind of CPU gets an entry of its own.
fn instructions() -> &'static str {
    match (vectors(), has_fma()) {
        (Vectors::Avx512, _) => "AVX-512",
        (Vectors::Avx2, true) => "AVX2",
        (Vectors::Avx2, false) => "AVX2 without FMA",
        (Vectors::Plain, _) if cfg!(target_arch = "aarch64") => "NEON",
        (Vectors::Plain, _) => "no AVX2",
    }
}

fn info() -> wgpu::AdapterInfo {
    wgpu::AdapterInfo {
        name: format!("CPU ({})", std::env::consts::ARCH),
        driver: "unisono-cpu".to_owned(),
        driver_info: format!("{}, Cranelift 0.135, {}", env!("CARGO_PKG_VERSION"), instructions()),
        ..wgpu::AdapterInfo::new(DeviceType::Cpu, Backend::Noop)
    }
}

impl AdapterInterface for Adapter {
    fn request_device(&self, descriptor: &wgpu::DeviceDescriptor<'_>) -> Pin<Box<dyn RequestDeviceFuture>> {
        let failed = |reason: String| Err(RequestDeviceError::from_message(reason));
        let missing = descriptor.required_features - features();
        let fits = descriptor.required_limits.check_limits(&limits());
        let opened = if !fits {
            failed("its limits are less than those that are required".to_owned())
        } else if !missing.is_empty() {
            failed(format!("it has no {missing:?}"))
        } else if let Err(message) = kernels::check(self.target) {
            failed(message)
        } else {
            match Timeline::new(self.options.threads, self.options.begin) {
                Ok(timeline) => Ok(Arc::new(timeline)),
                Err(error) => failed(format!("no thread: {error}")),
            }
        };
        let device = opened.map(|timeline| {
            let errors = Arc::new(Errors::default());
            let is_destroyed = Arc::new(AtomicBool::new(false));
            let device = Device {
                info: info(),
                features: descriptor.required_features,
                limits: descriptor.required_limits.clone(),
                errors: Arc::clone(&errors),
                timeline: Arc::clone(&timeline),
                lost: Mutex::default(),
                is_destroyed: Arc::clone(&is_destroyed),
                target: self.target,
                kernels: self.options.kernels.clone(),
                rounding: self.options.rounding,
            };
            let queue = Queue { errors, timeline, writes: Mutex::default(), is_destroyed };
            (DispatchDevice::custom(device), DispatchQueue::custom(queue))
        });
        Box::pin(std::future::ready(device))
    }

    fn is_surface_supported(&self, _: &DispatchSurface) -> bool {
        false
    }

    fn features(&self) -> Features {
        features()
    }

    fn limits(&self) -> Limits {
        limits()
    }

    fn downlevel_capabilities(&self) -> wgpu::DownlevelCapabilities {
        wgpu::DownlevelCapabilities::default()
    }

    fn get_info(&self) -> wgpu::AdapterInfo {
        info()
    }

    fn get_texture_format_features(&self, _: wgpu::TextureFormat) -> wgpu::TextureFormatFeatures {
        wgpu::TextureFormatFeatures {
            allowed_usages: wgpu::TextureUsages::empty(),
            flags: wgpu::TextureFormatFeatureFlags::empty(),
        }
    }

    fn get_presentation_timestamp(&self) -> wgpu::PresentationTimestamp {
        wgpu::PresentationTimestamp::INVALID_TIMESTAMP
    }

    fn cooperative_matrix_properties(&self) -> Vec<wgpu::wgt::CooperativeMatrixProperties> {
        Vec::new()
    }
}
