//! Adapters: what there is, as plain data. Listing opens no device.

use std::fmt;

use unisono_graph::target::{Machine, Target};

use crate::enumerate::{enumerate, instance, raw_backends};
use crate::environment::host_memory;

/// An adapter as it was found: plain data, to be shown, compared, sent to a thread and opened there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// The name the driver gives it.
    pub name: String,
    /// The interface it is reached through.
    pub backend: Backend,
    /// The kind of machine.
    pub kind: Kind,
    /// The driver's name.
    pub driver: String,
    /// The driver's version and whatever else it says.
    pub driver_info: String,
    /// PCI vendor id, or the backend's stand-in for one; 0 if unknown.
    pub vendor: u32,
    /// PCI device id, or the backend's stand-in for one; 0 if unknown.
    pub device: u32,
    /// PCI bus id; empty if unknown.
    pub pci_bus: String,
    /// Which one of several of that name and backend.
    pub twin: usize,
    /// The real limits; a device is opened with all of them.
    pub limits: Limits,
    /// What it can do beyond the least common.
    pub features: Features,
}

/// The interface an adapter is reached through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Linux, Windows, Android.
    Vulkan,
    /// Apple's.
    Metal,
    /// Windows'.
    Dx12,
    /// OpenGL: a last resort. Never opened unless asked for or when there is nothing else.
    Gl,
}

impl Backend {
    /// All backends, in the order in which they are preferred.
    pub const ALL: [Self; 4] = [Self::Vulkan, Self::Metal, Self::Dx12, Self::Gl];

    /// Returns whether this build has the backend: its feature is on, and it exists on this operating system.
    pub fn is_compiled(self) -> bool {
        wgpu::Instance::enabled_backend_features().contains(raw_backends(&[self]))
    }

    /// Returns the name of the feature of this crate that the backend needs: `vulkan`, `metal`, `dx12` or `gles`.
    pub fn feature(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
            Self::Gl => "gles",
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
    /// A GPU of which the driver does not say more.
    Other,
    /// No GPU: a driver that computes on the host.
    Cpu,
}

/// Limits of an adapter that plans and kernels may run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// Largest binding of a storage buffer, in bytes.
    pub storage_binding_bytes: u64,
    /// Storage buffers a kernel may have.
    pub storage_buffers: u32,
    /// Workgroups in each dimension of a launch.
    pub workgroups: u32,
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Workgroup memory, in bytes.
    pub workgroup_bytes: u32,
    /// Offsets of storage bindings are multiples of this many bytes.
    pub storage_alignment: u32,
    /// Offsets of uniform bindings are multiples of this many bytes.
    pub uniform_alignment: u32,
    /// Smallest and largest subgroup.
    pub subgroup: (u32, u32),
}

/// Optional abilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// `enable f16;` in shaders. Turned on when a device is opened with [`crate::Options::f16`].
    pub f16: bool,
    /// Timestamps on the device's own clock.
    pub timestamps: bool,
    /// Exchange of values within a subgroup. Turned on when a device is opened.
    pub subgroups: bool,
    /// 64-bit integers in shaders. Turned on when a device of a CPU adapter is opened.
    pub int64: bool,
    /// Buffers that kernels use and the host maps. Turned on when a device of a CPU adapter is opened.
    pub mappable: bool,
}

/// Lists the adapters of these backends, in the driver's order, opening no device.
///
/// An empty list means Vulkan, Metal and DX12, one entry for each machine, and GL only if these have nothing. Backends
/// that are asked for by name are listed as they are, so one machine may show up once for each.
///
/// A backend that this build leaves out ([`Backend::is_compiled`]) has no adapters. [`crate::select`] names such a backend in
/// its error.
///
/// Other backends are not even loaded. (GL has no way to look without a context; it is closed again before this returns.)
pub fn adapters(backends: &[Backend]) -> Vec<Adapter> {
    if !backends.is_empty() {
        return list(backends);
    }
    let native = without_duplicates(list(&[Backend::Vulkan, Backend::Metal, Backend::Dx12]));
    if native.is_empty() { list(&[Backend::Gl]) } else { native }
}

fn list(backends: &[Backend]) -> Vec<Adapter> {
    let compiled: Vec<Backend> = backends.iter().copied().filter(|backend| backend.is_compiled()).collect();
    if compiled.is_empty() {
        return Vec::new();
    }
    enumerate(&instance(&compiled, false), &compiled).into_iter().map(|(_, adapter)| adapter).collect()
}

/// Drops an adapter that another backend, earlier in [`Backend`]'s order, lists as well. Twins within a backend stay.
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

impl Adapter {
    /// What a plan has to know of this adapter.
    pub fn target(&self) -> Target {
        let (least, most) = self.limits.subgroup;
        Target {
            machine: if self.kind == Kind::Cpu { Machine::Cpu } else { Machine::Gpu },
            subgroup: if self.features.subgroups && least == most { least } else { 0 },
            max_binding_bytes: self.limits.storage_binding_bytes.min(self.limits.buffer_bytes),
            max_buffer_bytes: self.limits.buffer_bytes,
            max_workgroups: self.limits.workgroups,
            binding_alignment: u64::from(
                self.limits.storage_alignment.max(self.limits.uniform_alignment).max(4),
            ),
            f16: self.features.f16,
            pairs: self.loads_pairs(),
            shares_memory: self.shares_memory(),
        }
    }

    /// Where device and host are the same machine, copies between their buffers are pure loss.
    pub(crate) fn shares_memory(&self) -> bool {
        self.kind == Kind::Cpu && self.features.mappable
    }

    /// What loads lane by lane gains by loading two f32 at once.
    pub(crate) fn loads_pairs(&self) -> bool {
        self.kind == Kind::Cpu && self.features.int64
    }

    /// Name and backend, for messages: `llvmpipe (LLVM 15.0.6, 256 bits) [vulkan]`.
    pub fn label(&self) -> String {
        match self.twin {
            0 => format!("{} [{}]", self.name, self.backend),
            n => format!("{} #{} [{}]", self.name, n + 1, self.backend),
        }
    }

    /// Bytes of memory for everything on this adapter, where that is known without asking for it: the machine's on a CPU adapter.
    pub fn memory_bytes(&self) -> Option<u64> {
        if self.kind == Kind::Cpu { host_memory() } else { None }
    }

    fn is_same_machine(&self, other: &Self) -> bool {
        let ids = |a: &Self| (a.vendor, a.device);
        let buses_differ =
            !self.pci_bus.is_empty() && !other.pci_bus.is_empty() && self.pci_bus != other.pci_bus;
        ids(self) != (0, 0) && ids(self) == ids(other) && !buses_differ
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
mod tests {
    use super::*;

    fn adapter(backend: Backend, device: u32, pci_bus: &str) -> Adapter {
        Adapter {
            name: "GPU".to_owned(),
            backend,
            kind: Kind::Discrete,
            driver: String::new(),
            driver_info: String::new(),
            vendor: 0x10de,
            device,
            pci_bus: pci_bus.to_owned(),
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
            features: Features {
                f16: true,
                timestamps: false,
                subgroups: false,
                int64: true,
                mappable: true,
            },
        }
    }

    #[test]
    fn a_machine_is_listed_once_and_twins_stay() {
        let vulkan = [adapter(Backend::Vulkan, 1, "01"), adapter(Backend::Vulkan, 1, "02")];
        let dx12 = [adapter(Backend::Dx12, 1, ""), adapter(Backend::Dx12, 2, "")];
        let all = [&dx12[..], &vulkan[..]].concat();
        let once = vec![vulkan[0].clone(), vulkan[1].clone(), dx12[1].clone()];
        assert_eq!(without_duplicates(all), once);
    }

    #[test]
    fn a_target_is_the_least_that_holds_for_all_buffers() {
        let target = adapter(Backend::Vulkan, 1, "").target();
        assert_eq!(
            (target.machine, target.max_binding_bytes, target.binding_alignment),
            (Machine::Gpu, 1 << 30, 64)
        );
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
