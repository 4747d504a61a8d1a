//! Translates wgpu's adapters to plain data and back.

use crate::adapter::{Adapter, Backend, Features, Kind, Limits};

impl Adapter {
    /// Finds this adapter again in a listing of its backend, so that it can be opened.
    pub(crate) fn find(&self, instance: &wgpu::Instance) -> Option<wgpu::Adapter> {
        let same = |found: &Self| {
            let ids = |a: &Self| (a.vendor, a.device, a.pci_bus.clone());
            let place = |a: &Self| if a.pci_bus.is_empty() { a.twin } else { 0 };
            found.name == self.name && ids(found) == ids(self) && place(found) == place(self)
        };
        enumerate(instance, &[self.backend]).into_iter().find(|(_, found)| same(found)).map(|(raw, _)| raw)
    }
}

/// Returns an instance that knows these backends and loads no other. `debug` turns the drivers' own
/// validation on.
///
/// At least one of the backends must be compiled in, since wgpu panics otherwise: see
/// [`Backend::is_compiled`].
pub(crate) fn instance(backends: &[Backend], debug: bool) -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = raw_backends(backends);
    descriptor.flags = if debug { wgpu::InstanceFlags::debugging() } else { wgpu::InstanceFlags::empty() };
    // An allocation beyond it is an error; without it, some drivers lose the device instead.
    descriptor.memory_budget_thresholds.for_resource_creation = Some(95);
    wgpu::Instance::new(descriptor)
}

/// Returns the adapters that this instance lists, each with its description.
pub(crate) fn enumerate(instance: &wgpu::Instance, backends: &[Backend]) -> Vec<(wgpu::Adapter, Adapter)> {
    let mut found: Vec<(wgpu::Adapter, Adapter)> = Vec::new();
    for raw in pollster::block_on(instance.enumerate_adapters(raw_backends(backends))) {
        if let Some(mut adapter) = describe(&raw) {
            let same =
                |(_, other): &&(_, Adapter)| (other.backend, &other.name) == (adapter.backend, &adapter.name);
            adapter.twin = found.iter().filter(same).count();
            found.push((raw, adapter));
        }
    }
    found
}

pub(crate) fn raw_backends(backends: &[Backend]) -> wgpu::Backends {
    backends.iter().fold(wgpu::Backends::empty(), |set, backend| {
        set | match backend {
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
            Backend::Gl => wgpu::Backends::GL,
        }
    })
}

/// Describes an adapter. Returns none for one that cannot run compute shaders.
fn describe(raw: &wgpu::Adapter) -> Option<Adapter> {
    let (info, limits, features) = (raw.get_info(), raw.limits(), raw.features());
    if !raw.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        return None;
    }
    Some(Adapter {
        name: info.name,
        backend: match info.backend {
            wgpu::Backend::Vulkan => Backend::Vulkan,
            wgpu::Backend::Metal => Backend::Metal,
            wgpu::Backend::Dx12 => Backend::Dx12,
            wgpu::Backend::Gl => Backend::Gl,
            _ => return None,
        },
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Cpu,
            wgpu::DeviceType::Other => Kind::Other,
        },
        driver: info.driver,
        driver_info: info.driver_info,
        vendor: info.vendor,
        device: info.device,
        pci_bus: info.device_pci_bus_id,
        twin: 0,
        limits: Limits {
            buffer_bytes: limits.max_buffer_size,
            storage_binding_bytes: limits.max_storage_buffer_binding_size,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            workgroups: limits.max_compute_workgroups_per_dimension,
            invocations: limits.max_compute_invocations_per_workgroup,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            storage_alignment: limits.min_storage_buffer_offset_alignment,
            uniform_alignment: limits.min_uniform_buffer_offset_alignment,
            subgroup: (info.subgroup_min_size, info.subgroup_max_size),
        },
        features: Features {
            f16: features.contains(wgpu::Features::SHADER_F16),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            int64: features.contains(wgpu::Features::SHADER_INT64),
            mappable: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
        },
    })
}
