//! What a plan has to know of the device that it is made for: limits and the kind of machine, as plain data.

use super::{Kernel, Workgroup};

/// The device that a plan is made for. Default: the least that WebGPU guarantees.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The kind of machine, which decides what kernels run fast. No bit of a result depends on it.
    pub machine: Machine,
    /// The largest binding of a storage buffer, in bytes. Default: 128 MiB.
    pub max_binding_bytes: u64,
    /// The largest buffer, in bytes. Default: 256 MiB.
    pub max_buffer_bytes: u64,
    /// The most workgroups in each dimension of a launch. Default: 65,535.
    pub max_workgroups: u32,
    /// The most invocations of a workgroup. Default: 256.
    pub max_invocations: u32,
    /// The most bytes of workgroup memory of a kernel. Default: 16 KiB.
    pub max_workgroup_bytes: u32,
    /// The number of workgroups that a launch should have at least to keep the whole machine busy. Products
    /// take larger tiles where they have more. Default: 64.
    pub busy_workgroups: u32,
    /// The number of bytes of which the offset of every bound slice is a multiple. Default: 256.
    pub binding_alignment: u64,
    /// The most storage buffers of a kernel. Default: 8.
    pub storage_buffers: u32,
    /// Whether kernels may have buffers of f16. Default: no.
    pub f16: bool,
    /// Whether the device's own quotients and square roots are known to round correctly, so that kernels use
    /// them. No bit of a result depends on it. Default: no.
    pub own_quotients: bool,
    /// Whether results are made canonical in a way that keeps a compiler from merging the operations before
    /// with those behind, which nothing else forbids it ([`unisono_shaders::with_masks`]). No bit of a result
    /// depends on it where compilers keep to the text. Default: yes.
    pub masks: bool,
    /// Whether the host shares the device's memory, so that it reads and writes the buffers of kernels
    /// instead of copies of them ([`crate::plan::Role::Shared`]). Default: no.
    pub shares_memory: bool,
    /// The matrix unit by which products of numbers that f16 holds are computed, if they are. The results
    /// have bits of their own then. Default: none.
    pub unit: Option<MatrixUnit>,
}

/// A matrix unit: it multiplies square matrices of f16 and adds the product to one of f32.
///
/// The order in which a unit adds is not specified, so each kind of unit has bits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixUnit {
    /// The rows, and the columns, of its matrices: 8 or 16.
    pub size: u32,
    /// The most lanes of a subgroup, whose invocations use the unit together.
    pub lanes: u32,
    /// The fewest lanes of a subgroup, which a driver may choose.
    pub fewest: u32,
    /// How it is reached.
    pub way: UnitWay,
}

impl MatrixUnit {
    /// The bytes of workgroup memory that every kernel with a unit finds enough.
    pub const WORKGROUP_BYTES: u64 = 20 << 10;
}

/// How a matrix unit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitWay {
    /// Kernels use the cooperative matrices of the device.
    Cooperative,
    /// Kernels compute what a known unit does, by plain operations.
    Plain(UnitSums),
}

/// How a matrix unit adds. This is known for two kinds of units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnitSums {
    /// The sums of lavapipe's unit (Mesa 26.1, matrices of 8 x 8): the products of eight steps are added one
    /// by one, and the sum so far is added to that.
    #[default]
    InTurn,
    /// The sums of NVIDIA's Hopper (an H200 by Vulkan, matrices of 16 x 16): the products of 16 steps and the
    /// sum so far are cut off at 25 bits below their largest exponent and added exactly, and the result is
    /// cut off to 24 bits.
    Aligned,
}

impl UnitSums {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::InTurn, Self::Aligned];

    /// Returns the unit that adds so, as plain operations compute it.
    pub fn unit(self) -> MatrixUnit {
        let size = match self {
            Self::InTurn => 8,
            Self::Aligned => 16,
        };
        MatrixUnit { size, lanes: 1, fewest: 1, way: UnitWay::Plain(self) }
    }
}

impl Target {
    /// Returns whether the device has what a workgroup takes.
    pub fn has_room_for(&self, workgroup: Workgroup) -> bool {
        workgroup.invocations <= self.max_invocations.into()
            && workgroup.bytes <= self.max_workgroup_bytes.into()
    }

    /// Returns whether the device can run the workgroups of a kernel. One whose workgroups are not known
    /// counts as one that it can run, since then only the device can say.
    pub(crate) fn can_run(&self, kernel: &Kernel) -> bool {
        kernel.workgroup().is_none_or(|workgroup| self.has_room_for(workgroup))
    }
}

/// The kind of machine behind an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// The machine is the CPU itself: registers and the caches of its cores are fast, barriers are
    /// slow.
    Cpu,
    /// The machine is a GPU, or a driver that computes as one on the CPU: tiles in workgroup memory pay.
    Gpu,
}

impl Default for Target {
    /// Returns the least that WebGPU guarantees.
    fn default() -> Self {
        Self {
            machine: Machine::Gpu,
            max_binding_bytes: 128 << 20,
            max_buffer_bytes: 256 << 20,
            max_workgroups: 65_535,
            max_invocations: 256,
            max_workgroup_bytes: 16 << 10,
            busy_workgroups: 64,
            binding_alignment: 256,
            storage_buffers: 8,
            f16: false,
            own_quotients: false,
            masks: true,
            shares_memory: false,
            unit: None,
        }
    }
}
