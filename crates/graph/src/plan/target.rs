//! What a plan has to know of the device it is made for: limits and the kind of machine, as plain data.

/// The device a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Which shapes of kernels run fast. Never changes a result's bits.
    pub machine: Machine,
    /// Lanes of every subgroup, where kernels may exchange values within one; 0 where they may not.
    pub subgroup: u32,
    /// Largest binding of a storage buffer, in bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Workgroups in each dimension of a launch.
    pub max_workgroups: u32,
    /// Offsets of bound slices are multiples of this many bytes.
    pub binding_alignment: u64,
    /// Whether kernels may have buffers of f16.
    pub f16: bool,
    /// Whether kernels had better load and store two f32 as a u64.
    pub pairs: bool,
    /// Whether the host had better read and write the buffers of kernels than copies of them: [`crate::plan::Role::Shared`].
    pub shares_memory: bool,
}

/// The kind of machine behind an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A software adapter: registers are fast, workgroup memory and barriers are slow.
    Cpu,
    /// A GPU: tiles in workgroup memory pay.
    Gpu,
}

impl Default for Target {
    /// The least that WebGPU guarantees.
    fn default() -> Self {
        Self {
            machine: Machine::Gpu,
            subgroup: 0,
            max_binding_bytes: 128 << 20,
            max_buffer_bytes: 256 << 20,
            max_workgroups: 65_535,
            binding_alignment: 256,
            f16: false,
            pairs: false,
            shares_memory: false,
        }
    }
}
