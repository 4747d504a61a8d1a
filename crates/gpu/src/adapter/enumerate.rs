//! Translates wgpu's adapters to plain data and back.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::adapter::arithmetic::Arithmetic;
use crate::adapter::environment::apple_system;
use crate::adapter::matrix::MatrixSize;
use crate::adapter::shared::SharedKernels;
use crate::adapter::{Adapter, Backend, Features, Kind, Limits};

impl Adapter {
    /// Finds this adapter again in a listing of its backend, so that it can be opened.
    pub(crate) fn find(&self, instance: &wgpu::Instance) -> Option<wgpu::Adapter> {
        let (raw, found): (Vec<_>, Vec<_>) = enumerate(instance, &[self.backend]).into_iter().unzip();
        raw.into_iter().nth(self.place(&found)?)
    }

    /// Returns the place of this adapter in a listing of its backend. The PCI bus tells adapters with the
    /// same name apart, and where it does not, their order does: DX12 gives the bus of the first of several
    /// equal cards for all of them.
    fn place(&self, found: &[Self]) -> Option<usize> {
        let key = |a: &Self| (a.name.clone(), a.vendor, a.device, a.pci_bus.clone());
        let mut fits = (0..found.len()).filter(|&at| key(&found[at]) == key(self));
        if !self.pci_bus.is_empty() && fits.clone().count() == 1 {
            return fits.next();
        }
        fits.find(|&at| found[at].twin == self.twin)
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

/// An instance of each backend through which a GPU was opened.
static KEPT: Mutex<BTreeMap<Backend, wgpu::Instance>> = Mutex::new(BTreeMap::new());

/// Keeps an instance of a GPU's backend until the process ends. When the last one is closed, the system
/// unloads the driver, while threads of its own may still run in it.
pub(crate) fn keep(backend: Backend, instance: &wgpu::Instance) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(backend).or_insert_with(|| instance.clone());
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

/// Returns the CPU as an adapter with this number of threads and these compiled kernels.
#[cfg(feature = "cpu")]
pub(crate) fn raw_cpu(
    threads: usize,
    arithmetic: Arithmetic,
    kernels: &SharedKernels,
) -> Option<wgpu::Adapter> {
    use unisono_cpu::Rounding::{Fused, Split};
    let begin = if arithmetic.subnormals { super::float_mode::keep } else { super::float_mode::flush };
    let rounding = if arithmetic.fused { Fused } else { Split };
    let options = unisono_cpu::Options { threads, begin, rounding, kernels: kernels.of_cpu() };
    unisono_cpu::is_supported().then(|| unisono_cpu::adapter(options))
}

#[cfg(not(feature = "cpu"))]
pub(crate) fn raw_cpu(_: usize, _: Arithmetic, _: &SharedKernels) -> Option<wgpu::Adapter> {
    None
}

/// Returns the description of the CPU as an adapter. Its name has the arithmetic, unless that is the
/// default.
pub(crate) fn cpu(arithmetic: Arithmetic) -> Option<Adapter> {
    let raw = raw_cpu(1, arithmetic, &SharedKernels::default())?;
    let mut adapter = describe(&raw)?;
    adapter.arithmetic = Some(arithmetic);
    if arithmetic != Arithmetic::default() {
        adapter.name = format!("{}, {}", adapter.name, arithmetic.name());
    }
    Some(adapter)
}

pub(crate) fn raw_backends(backends: &[Backend]) -> wgpu::Backends {
    backends.iter().fold(wgpu::Backends::empty(), |set, backend| {
        set | match backend {
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
            Backend::Gl => wgpu::Backends::GL,
            // wgpu does not list it.
            Backend::Cpu => wgpu::Backends::empty(),
        }
    })
}

/// Describes an adapter. Returns none for one that cannot run compute shaders.
fn describe(raw: &wgpu::Adapter) -> Option<Adapter> {
    let (info, limits, features) = (raw.get_info(), raw.limits(), raw.features());
    if !raw.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        return None;
    }
    let backend = match info.backend {
        wgpu::Backend::Vulkan => Backend::Vulkan,
        wgpu::Backend::Metal => Backend::Metal,
        wgpu::Backend::Dx12 => Backend::Dx12,
        wgpu::Backend::Gl => Backend::Gl,
        wgpu::Backend::Noop => Backend::Cpu,
        _ => return None,
    };
    let (mut driver, mut driver_info) = (info.driver, info.driver_info);
    if backend == Backend::Metal && driver.is_empty() && driver_info.is_empty() {
        // The driver and its compiler are parts of the system, and have no versions of their own.
        [driver, driver_info] = apple_system().unwrap_or_default();
    }
    Some(Adapter {
        name: info.name,
        backend,
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Cpu,
            wgpu::DeviceType::Other => Kind::Other,
        },
        driver,
        driver_info,
        vendor: info.vendor,
        device: info.device,
        pci_bus: info.device_pci_bus_id,
        arithmetic: None,
        twin: 0,
        limits: Limits {
            buffer_bytes: limits.max_buffer_size,
            storage_binding_bytes: limits.max_storage_buffer_binding_size,
            storage_buffers: storage_buffers(&limits),
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
            mappable: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
        },
        matrix_sizes: MatrixSize::listed(raw),
        unit: None,
    })
}

/// Returns the number of storage buffers that a kernel may have. Each kernel also has a uniform buffer, and
/// Metal has one limit for buffers of all kinds.
fn storage_buffers(limits: &wgpu::Limits) -> u32 {
    let all = limits.max_buffers_and_acceleration_structures_per_shader_stage;
    limits.max_storage_buffers_per_shader_stage.min(all.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::adapter;

    #[test]
    fn storage_buffers_leave_room_for_the_uniform() {
        let of = |storage, all| {
            storage_buffers(&wgpu::Limits {
                max_storage_buffers_per_shader_stage: storage,
                max_buffers_and_acceleration_structures_per_shader_stage: all,
                ..wgpu::Limits::default()
            })
        };
        assert_eq!([of(29, 29), of(29, 30), of(8, u32::MAX), of(64, u32::MAX)], [28, 29, 8, 64]);
    }

    #[test]
    fn a_driver_of_each_backend_is_kept() {
        let drivers = [Backend::Vulkan, Backend::Metal, Backend::Dx12, Backend::Gl];
        let compiled = || drivers.into_iter().filter(|backend| backend.is_compiled());
        compiled().for_each(|backend| keep(backend, &instance(&[backend], false)));
        assert!(compiled().all(|backend| KEPT.lock().unwrap().contains_key(&backend)));
    }

    /// DX12 lists two equal cards with the bus of the first.
    #[test]
    fn an_adapter_is_found_by_its_bus_or_by_its_number_among_equal_ones() {
        let twin = |twin, bus| Adapter { twin, ..adapter(Backend::Dx12, 1, bus) };
        for bus in ["0000:01:00.0", ""] {
            let cards = [twin(0, bus), twin(1, bus)];
            assert_eq!(cards.each_ref().map(|card| card.place(&cards)), [Some(0), Some(1)]);
        }
        // A bus of its own is enough, even if the order of the cards is another one now.
        let cards = [twin(0, "02"), twin(1, "01")];
        assert_eq!([twin(0, "01").place(&cards), twin(1, "02").place(&cards)], [Some(1), Some(0)]);
        assert_eq!([twin(0, "03").place(&cards), twin(1, "").place(&[twin(0, "")])], [None, None]);
    }
}
