//! The plan: a step as plain data.
//!
//! A plan says everything a device has to do for one *run* of consecutive shards: which kernels, which
//! buffers, which launches in which order, what is uploaded before them and what is downloaded after. Whoever
//! executes it decides nothing. Sizes are concrete here; the sizes of the next plan may differ, its kernels
//! mostly do not.

mod held;
mod memory;
mod states;
pub mod target;
mod work;

pub(crate) use memory::{Lifetime, plan_memory};
pub use states::StateLayout;
pub use target::Target;
pub use unisono_shaders::Workgroup;
pub use work::{Work, WorkKind};

/// The index of a kernel in [`Plan::kernels`].
pub type KernelId = usize;
/// The index of a buffer in [`Plan::buffers`].
pub type BufferId = usize;

/// All that a device needs to execute a step for one run of shards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The kernels, each distinct one once.
    pub kernels: Vec<Kernel>,
    /// The buffers that the plan touches, those of the persistent state included.
    pub buffers: Vec<Buffer>,
    /// The segments of the step, in order. At the cut between two of them values meet across shards, which
    /// needs the host when more than one device takes part. The last segment commits: only it changes buffers
    /// of [`Role::State`] and [`Role::Resident`].
    pub segments: Vec<Segment>,
}

/// A compute shader, ready to compile.
///
/// The entry point is `main`. `@group(0) @binding(0)` is a uniform of `u32` fields, which are filled with
/// [`Launch::params`]; `@binding(1..)` are storage buffers, one for each entry of `bindings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The name for error messages and traces, for example `fused[mul, sigmoid]`.
    pub name: String,
    /// The text of the whole module.
    pub wgsl: String,
    /// How the kernel uses the storage buffers at bindings 1, 2, ...
    pub bindings: Vec<Access>,
}

impl Kernel {
    /// Returns what a workgroup of the kernel takes, or `None` if the text declares it in a way that no
    /// kernel of this crate does.
    pub fn workgroup(&self) -> Option<Workgroup> {
        Workgroup::of(&self.wgsl)
    }
}

/// How a kernel uses a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The kernel reads the buffer: `var<storage, read>`.
    Read,
    /// The kernel reads and writes the buffer: `var<storage, read_write>`.
    ReadWrite,
}

/// A buffer on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The size in bytes, a multiple of 4 and at least 4.
    pub bytes: u64,
    /// What the buffer is for, and how long its contents live.
    pub role: Role,
}

/// What a buffer is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// The contents do not outlive the step. Plans that never run at the same time may share the memory.
    Scratch,
    /// The host itself reads or writes the contents, which do not outlive the step; it shares the device's
    /// memory. No other value and no other plan has a part of the buffer, so what a segment leaves there
    /// lasts until the segment runs again.
    Shared,
    /// The buffer is buffer `.0` of the persistent state ([`StateLayout`]), for all plans of a device.
    State(usize),
    /// The buffer is resident memory `.0`, for all plans of a device: rows of the samples that the device
    /// computes, which stay there from step to step ([`crate::InputKind::Resident`]). Where a plan's size is
    /// another, the memory is made again, and starts as zeros.
    Resident(usize),
    /// The buffer says how the last steps ended. It is one of the words by which steps in flight know of each
    /// other: buffer `.0` of them, for all plans of a device. It starts as zeros.
    Verdict(usize),
    /// The buffer holds these constants, which are written once.
    Table(Vec<u32>),
}

/// A part of the step without a cross-shard sum inside. A device uploads, runs the commands in order, and
/// downloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// What the host fills before the commands.
    pub uploads: Vec<Transfer>,
    /// The commands in the order in which they are executed.
    pub commands: Vec<Command>,
    /// What the host reads after the commands.
    pub downloads: Vec<Transfer>,
}

/// Bytes between host and device.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// A number that says what the bytes are. Its meaning is that of the maker of the plan, see
    /// [`crate::Slot::decode`].
    pub slot: usize,
    /// Where they are on the device.
    pub slice: Slice,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The index of the buffer.
    pub buffer: BufferId,
    /// The first byte. In a slice that is bound to a kernel, it is a multiple of
    /// [`crate::target::Target::binding_alignment`].
    pub offset: u64,
    /// The length in bytes, a multiple of 4.
    pub bytes: u64,
}

/// One thing a device does.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// The device runs a kernel.
    Launch(Launch),
    /// The device copies from one buffer to another. The slices are of one length.
    Copy {
        /// The slice that is read.
        from: Slice,
        /// The slice that is written.
        to: Slice,
    },
    /// The device fills the slice with zero bytes.
    Clear(Slice),
}

/// One dispatch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The index of the kernel.
    pub kernel: KernelId,
    /// The slices that the kernel is bound to, in the order of [`Kernel::bindings`].
    pub bindings: Vec<Slice>,
    /// The words of the uniform at binding 0, at most 64.
    pub params: Vec<u32>,
    /// The numbers of workgroups in x, y and z. None is zero, and each is at most
    /// [`crate::target::Target::max_workgroups`].
    pub grid: [u32; 3],
    /// What the launch computes, for tables and benchmarks.
    pub work: Work,
}

impl Plan {
    /// Returns the bytes of scratch that the plan needs: what has to be allocated beside the state.
    pub fn scratch_bytes(&self) -> u64 {
        self.buffers
            .iter()
            .filter(|b| matches!(b.role, Role::Scratch | Role::Shared | Role::Resident(_)))
            .map(|b| b.bytes)
            .sum()
    }

    /// Returns the number of kernel launches of one step.
    pub fn launches(&self) -> usize {
        let of = |s: &Segment| s.commands.iter().filter(|c| matches!(c, Command::Launch(_))).count();
        self.segments.iter().map(of).sum()
    }
}
