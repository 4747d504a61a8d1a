//! Lists adapters as plain data. Listing opens no device.

pub(crate) mod arithmetic;
pub(crate) mod enumerate;
pub(crate) mod environment;
pub(crate) mod float_mode;
pub(crate) mod matrix;
pub(crate) mod select;
pub(crate) mod shared;

use std::fmt;

use unisono_graph::target::{Machine, MatrixUnit, Target};

use arithmetic::Arithmetic;
use enumerate::{cpu, enumerate, instance, raw_backends};
pub(crate) use environment::cores;
use environment::host_memory;
use matrix::MatrixSize;

/// An adapter as it was listed: plain data that can be shown, compared, sent to a thread and opened there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// The name that the driver gives the adapter. The CPU is called `CPU (ARCHITECTURE)`. If its arithmetic
    /// is not the default, the arithmetic's name follows, as in `CPU (x86_64), split`.
    pub name: String,
    /// The graphics interface through which it is reached, or none of them: [`Backend::Cpu`].
    pub backend: Backend,
    /// The kind of machine.
    pub kind: Kind,
    /// The driver's name. On Metal it is the name of the system, which the driver is a part of.
    pub driver: String,
    /// The driver's version and whatever else it says about itself. On Metal it is the build of the system.
    pub driver_info: String,
    /// The PCI vendor id, or what the backend puts in its place; 0 if unknown.
    pub vendor: u32,
    /// The PCI device id, or what the backend puts in its place; 0 if unknown.
    pub device: u32,
    /// The PCI bus id; empty if unknown.
    pub pci_bus: String,
    /// The arithmetic that the CPU is asked for. It is `None` for other adapters, where a probe finds it.
    pub arithmetic: Option<Arithmetic>,
    /// The number of this adapter among several with the same name and backend, from 0.
    pub twin: usize,
    /// The real limits. A device is opened with all of them.
    pub limits: Limits,
    /// The optional features that it has.
    pub features: Features,
    /// The products that its matrix unit computes, as the driver lists them.
    pub matrix_sizes: Vec<MatrixSize>,
    /// The matrix unit that kernels are asked to use. Default: none ([`Adapter::with_matrix_units`]).
    pub unit: Option<MatrixUnit>,
}

/// The graphics interface through which an adapter is reached, or the CPU without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Vulkan, on Linux, Windows and Android.
    Vulkan,
    /// Metal, on Apple's systems.
    Metal,
    /// Direct3D 12, on Windows.
    Dx12,
    /// OpenGL, the last resort: it is loaded only when it is asked for, or when there is nothing else.
    Gl,
    /// No graphics interface and no driver: the CPU computes kernels as its own machine code
    /// ([`unisono_cpu`]). It is the default where there is no GPU.
    Cpu,
}

impl Backend {
    /// All backends, in the order in which [`adapters`] lists them. [`crate::select`] prefers the CPU
    /// to software drivers of the others.
    pub const ALL: [Self; 5] = [Self::Vulkan, Self::Metal, Self::Dx12, Self::Gl, Self::Cpu];

    /// Returns whether this build has the backend: its feature is on, and it exists on this operating system.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Cpu => cfg!(feature = "cpu"),
            _ => wgpu::Instance::enabled_backend_features().contains(raw_backends(&[self])),
        }
    }

    /// Returns the name of the feature of this crate that the backend needs: `vulkan`, `metal`, `dx12`,
    /// `gles` or `cpu`.
    pub fn feature(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
            Self::Gl => "gles",
            Self::Cpu => "cpu",
        }
    }
}

/// The kind of machine behind an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A part of a GPU, or one behind a hypervisor.
    Virtual,
    /// A GPU about which the driver does not say more.
    Other,
    /// The host's CPU: by itself ([`Backend::Cpu`]), or behind a software driver.
    Cpu,
}

/// The limits of an adapter that plans and kernels may run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// The largest binding of a storage buffer, in bytes.
    pub storage_binding_bytes: u64,
    /// The number of storage buffers that a kernel may have beside its uniform buffer.
    pub storage_buffers: u32,
    /// The number of workgroups in each dimension of a launch.
    pub workgroups: u32,
    /// The number of invocations in a workgroup.
    pub invocations: u32,
    /// The workgroup memory, in bytes.
    pub workgroup_bytes: u32,
    /// The alignment of the offsets of storage bindings, in bytes.
    pub storage_alignment: u32,
    /// The alignment of the offsets of uniform bindings, in bytes.
    pub uniform_alignment: u32,
    /// The sizes of the smallest and the largest subgroup.
    pub subgroup: (u32, u32),
}

/// The optional features of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// Shaders may `enable f16;`. It is turned on when a device is opened with [`crate::Options::f16`], or
    /// with its matrix unit in use ([`Adapter::with_matrix_units`]).
    pub f16: bool,
    /// The device writes timestamps of its own clock.
    pub timestamps: bool,
    /// Kernels may exchange values within a subgroup. It is turned on when a device is opened.
    pub subgroups: bool,
    /// The host may map buffers that kernels use.
    pub mappable: bool,
}

/// Lists the adapters of these backends in the driver's order. It opens no device.
///
/// An empty list means Vulkan, Metal and DX12, with one entry for each machine, GL only if these have
/// nothing, and the CPU, last. Backends that are asked for by name are listed as they are, so one
/// machine may be listed once for each of them.
///
/// A backend that this build leaves out ([`Backend::is_compiled`]) has no adapters. [`crate::select`] names
/// such a backend in its error.
///
/// Backends that are not asked for are not loaded. (GL cannot list without a context, which is closed before
/// this returns.)
pub fn adapters(backends: &[Backend]) -> Vec<Adapter> {
    if !backends.is_empty() {
        return list(backends);
    }
    let mut found = without_duplicates(list(&[Backend::Vulkan, Backend::Metal, Backend::Dx12]));
    if found.is_empty() {
        found = list(&[Backend::Gl]);
    }
    found.extend(list(&[Backend::Cpu]));
    found
}

fn list(backends: &[Backend]) -> Vec<Adapter> {
    let is_driver = |backend: &Backend| *backend != Backend::Cpu && backend.is_compiled();
    let drivers: Vec<Backend> = backends.iter().copied().filter(is_driver).collect();
    let mut found: Vec<Adapter> = if drivers.is_empty() {
        Vec::new()
    } else {
        enumerate(&instance(&drivers, false), &drivers).into_iter().map(|(_, adapter)| adapter).collect()
    };
    if backends.contains(&Backend::Cpu) {
        found.extend(cpu(Arithmetic::default()));
    }
    found
}

/// Drops an adapter that another backend, earlier in [`Backend`]'s order, lists as well. Equal adapters of
/// one backend stay.
fn without_duplicates(mut found: Vec<Adapter>) -> Vec<Adapter> {
    found.sort_by_key(|adapter| adapter.backend);
    let mut kept: Vec<Adapter> = Vec::new();
    for adapter in found {
        let known = |other: &Adapter| other.backend != adapter.backend && other.is_same_machine(&adapter);
        if !kept.iter().any(known) {
            kept.push(adapter);
        }
    }
    kept
}

/// Returns the number of threads on which each of so many devices computes, in each of so many processes on
/// this machine.
pub(crate) fn own_cores(devices: usize, processes: usize) -> usize {
    let own = cores();
    share([own, environment::all_cores().unwrap_or(own)], devices, processes)
}

/// Returns a device's part of the cores that its process may use, and of those of the machine.
fn share([own, all]: [usize; 2], devices: usize, processes: usize) -> usize {
    // A process that may use few cores shares them with no other process.
    (own.min(all / processes.max(1)) / devices.max(1)).max(1)
}

/// The most storage buffers of a kernel that plans make use of.
const MOST_BUFFERS: u32 = 64;

/// The most bytes of a buffer that a kernel reads or writes. Kernels count them in 32 bits. Metal allows
/// more: half of the machine's memory, and 4 GiB less a few bytes is what it tells kernels of it.
const MOST_BINDING: u64 = (1 << 32) - 4;

impl Adapter {
    /// Returns what a plan has to know of this adapter.
    pub fn target(&self) -> Target {
        let limits = &self.limits;
        Target {
            machine: match (self.backend, self.kind) {
                (Backend::Cpu, _) => Machine::Cpu,
                _ => Machine::Gpu,
            },
            max_binding_bytes: limits.storage_binding_bytes.min(limits.buffer_bytes).min(MOST_BINDING),
            max_buffer_bytes: limits.buffer_bytes,
            max_workgroups: limits.workgroups,
            max_invocations: limits.invocations,
            max_workgroup_bytes: limits.workgroup_bytes,
            busy_workgroups: self.busy_workgroups(),
            storage_buffers: limits.storage_buffers.min(MOST_BUFFERS),
            binding_alignment: limits.storage_alignment.max(limits.uniform_alignment).max(4).into(),
            f16: self.features.f16,
            own_quotients: self.divides_exactly(),
            masks: !matches!(self.backend, Backend::Vulkan | Backend::Cpu),
            shares_memory: self.shares_memory(),
            unit: self.unit,
        }
    }

    /// Returns the number of workgroups that keep the adapter busy. No backend tells it: two for
    /// each of the some 128 multiprocessors of a large discrete GPU, or of the some 16 of an integrated one.
    /// Software drivers, which compile large tiles slowly, count as a GPU in between.
    fn busy_workgroups(&self) -> u32 {
        match self.kind {
            Kind::Cpu if self.backend == Backend::Cpu => 2 * cores() as u32,
            Kind::Discrete => 256,
            Kind::Virtual | Kind::Other => 128,
            Kind::Integrated => 32,
            Kind::Cpu => 64,
        }
    }

    /// Returns whether device and host are one machine and share buffers: then copies between them are pure
    /// loss. Software drivers share none, so that they run what GPUs run.
    pub(crate) fn shares_memory(&self) -> bool {
        self.backend == Backend::Cpu && self.features.mappable
    }

    /// Returns whether quotients and square roots are those of the CPU, which round correctly: on the
    /// software drivers that are known to use its instructions.
    fn divides_exactly(&self) -> bool {
        let is_known = || ["llvmpipe", "SwiftShader"].iter().any(|name| self.name.contains(name));
        self.backend == Backend::Cpu || self.kind == Kind::Cpu && is_known()
    }

    /// Returns why kernels cannot be compiled for the adapter. Without DXC, wgpu falls back to FXC and shader
    /// model 5.1, which has no subgroups. FXC refuses most products, each after half a minute or more.
    pub(crate) fn lacks_compiler(&self) -> Option<&'static str> {
        (self.backend == Backend::Dx12 && !self.features.subgroups).then_some(
            "DirectX 12 cannot use shader model 6 with wave operations: put dxcompiler.dll, version 1.8.2502 or later, \
             next to the program or on the PATH, or install the GPU's Vulkan driver",
        )
    }

    /// Returns name and backend, for messages and for [`crate::select`]:
    /// `llvmpipe (LLVM 15.0.6, 256 bits) [vulkan]`. Of adapters with the same name and backend, the second
    /// and later ones have their number behind the name: `NAME #2 [vulkan]`.
    pub fn label(&self) -> String {
        match self.twin {
            0 => format!("{} [{}]", self.name, self.backend),
            n => format!("{} #{} [{}]", self.name, n + 1, self.backend),
        }
    }

    /// Returns the bytes of memory of this adapter where they are known without opening it: on a CPU adapter
    /// the machine's, or those of the container that the process runs in.
    pub fn memory_bytes(&self) -> Option<u64> {
        if self.kind == Kind::Cpu { host_memory() } else { None }
    }

    /// Returns whether an adapter of another backend is the same machine.
    fn is_same_machine(&self, other: &Self) -> bool {
        let ids = |a: &Self| (pci_vendor(a.vendor), a.device);
        let has_domains = self.backend != Backend::Dx12 && other.backend != Backend::Dx12;
        let buses = [self, other].map(|a| if has_domains { &a.pci_bus } else { without_domain(&a.pci_bus) });
        let buses_differ = !buses[0].is_empty() && !buses[1].is_empty() && buses[0] != buses[1];
        ids(self) != (0, 0) && ids(self) == ids(other) && !buses_differ
    }
}

/// Returns a vendor's PCI id. DX12 has the letters QCOM for Qualcomm.
fn pci_vendor(id: u32) -> u32 {
    if id == 0x4d4f_4351 { 0x5143 } else { id }
}

/// Returns a PCI bus id, `DOMAIN:BUS:DEVICE.FUNCTION`, without the domain. DX12 gives 0 for all of them.
fn without_domain(bus: &str) -> &str {
    match bus.split_once(':') {
        Some((_, rest)) if rest.contains(':') => rest,
        _ => bus,
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
            Self::Gl => "gl",
            Self::Cpu => "cpu",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Cpu => "cpu",
        })
    }
}

#[cfg(test)]
pub(in crate::adapter) mod tests {
    use super::*;

    pub(in crate::adapter) fn adapter(backend: Backend, device: u32, pci_bus: &str) -> Adapter {
        Adapter {
            name: "GPU".to_owned(),
            backend,
            kind: Kind::Discrete,
            driver: String::new(),
            driver_info: String::new(),
            vendor: 0x10de,
            device,
            pci_bus: pci_bus.to_owned(),
            arithmetic: None,
            twin: 0,
            limits: Limits {
                buffer_bytes: 1 << 30,
                storage_binding_bytes: 1 << 31,
                storage_buffers: 8,
                workgroups: 65_535,
                invocations: 256,
                workgroup_bytes: 16 << 10,
                storage_alignment: 32,
                uniform_alignment: 64,
                subgroup: (32, 32),
            },
            features: Features { f16: true, timestamps: false, subgroups: false, mappable: true },
            matrix_sizes: Vec::new(),
            unit: None,
        }
    }

    #[test]
    fn directx_without_its_newer_compiler_is_refused_by_name() {
        let mut own = adapter(Backend::Dx12, 1, "");
        assert!(own.lacks_compiler().is_some_and(|why| why.contains("put dxcompiler.dll")));
        own.features.subgroups = true;
        assert_eq!(own.lacks_compiler(), None);
        assert_eq!(adapter(Backend::Vulkan, 1, "").lacks_compiler(), None);
    }

    #[test]
    fn a_machine_is_listed_once_and_twins_stay() {
        let vulkan = [adapter(Backend::Vulkan, 1, "01"), adapter(Backend::Vulkan, 1, "02")];
        let dx12 = [adapter(Backend::Dx12, 1, ""), adapter(Backend::Dx12, 2, "")];
        let all = [&dx12[..], &vulkan[..]].concat();
        let once = vec![vulkan[0].clone(), vulkan[1].clone(), dx12[1].clone()];
        assert_eq!(without_duplicates(all), once);
    }

    /// DX12 has a vendor id of its own for Qualcomm, and knows no PCI domains.
    #[test]
    fn a_machine_that_dx12_describes_in_another_way_is_listed_once() {
        let qualcomm = |backend, vendor| Adapter { vendor, ..adapter(backend, 0x3633_4330, "") };
        let adreno = qualcomm(Backend::Vulkan, 0x5143);
        let twice = vec![adreno.clone(), qualcomm(Backend::Dx12, 0x4d4f_4351)];
        assert_eq!(without_duplicates(twice), [adreno]);
        let far = adapter(Backend::Vulkan, 1, "0002:81:00.0");
        let beside = adapter(Backend::Vulkan, 1, "0003:81:00.0");
        let other = adapter(Backend::Dx12, 1, "0000:82:00.0");
        let all = vec![far.clone(), beside.clone(), adapter(Backend::Dx12, 1, "0000:81:00.0"), other.clone()];
        assert_eq!(without_duplicates(all), [far, beside, other]);
    }

    #[test]
    fn software_drivers_run_what_gpus_run() {
        let software = |backend| Adapter { kind: Kind::Cpu, ..adapter(backend, 1, "") };
        let shares = Backend::ALL.map(|backend| software(backend).shares_memory());
        assert_eq!(shares, [false, false, false, false, true]);
        assert_eq!(software(Backend::Vulkan).target().machine, Machine::Gpu);
    }

    #[test]
    fn a_target_is_the_least_that_holds_for_all_buffers() {
        let target = adapter(Backend::Vulkan, 1, "").target();
        assert_eq!(
            (target.machine, target.max_binding_bytes, target.binding_alignment),
            (Machine::Gpu, 1 << 30, 64)
        );
        let mut mac = adapter(Backend::Metal, 1, "");
        (mac.limits.buffer_bytes, mac.limits.storage_binding_bytes) = (36 << 30, 36 << 30);
        let target = mac.target();
        assert_eq!((target.max_buffer_bytes, target.max_binding_bytes), (36 << 30, (1 << 32) - 4));
    }

    #[test]
    fn processes_share_the_cores_that_the_system_has_not_divided_among_them() {
        assert_eq!([share([32, 32], 1, 1), share([32, 32], 2, 1), share([32, 32], 1, 4)], [32, 16, 8]);
        assert_eq!([share([8, 32], 1, 4), share([8, 32], 2, 4), share([1, 32], 4, 64)], [8, 4, 1]);
    }

    #[test]
    fn twins_have_labels_of_their_own() {
        let second = Adapter { twin: 1, ..adapter(Backend::Metal, 1, "") };
        assert_eq!(
            (adapter(Backend::Gl, 1, "").label(), second.label()),
            ("GPU [gl]".into(), "GPU #2 [metal]".into())
        );
    }
}
