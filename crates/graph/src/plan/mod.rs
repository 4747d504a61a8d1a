//! The plan: a step as plain data.
//!
//! A plan says everything a device has to do for one *run* of consecutive shards: which kernels, which buffers, which
//! launches in which order, what is uploaded before them and what is downloaded after. Whoever executes it decides
//! nothing. Sizes are concrete here; the sizes of the next plan may differ, its kernels mostly do not.

mod memory;
pub mod target;

pub use memory::{Lifetime, MemoryPlan, plan_memory};
pub use target::Target;

/// Index into [`Plan::kernels`].
pub type KernelId = usize;
/// Index into [`Plan::buffers`].
pub type BufferId = usize;

/// What a device needs to run a step for one run of shards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each distinct kernel once.
    pub kernels: Vec<Kernel>,
    /// All buffers the plan touches, those of the persistent state included.
    pub buffers: Vec<Buffer>,
    /// The parts of the step, in order. Between two of them values meet across shards, which needs the host when more
    /// than one device takes part. The last one commits: only it changes [`Role::State`] buffers.
    pub segments: Vec<Segment>,
}

/// A compute shader, ready to compile.
///
/// Its entry point is `main`. `@group(0) @binding(0)` is a uniform of `u32` fields, [`Launch::params`];
/// `@binding(1..)` are storage buffers, one for each entry of `bindings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// For error messages and traces, for example `fused[mul, sigmoid]`.
    pub name: String,
    /// The whole module.
    pub wgsl: String,
    /// How the storage buffers at bindings 1, 2, ... are used.
    pub bindings: Vec<Access>,
}

/// How a kernel uses a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// A buffer on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Size in bytes, a multiple of 4, at least 4.
    pub bytes: u64,
    /// What it is for and how long it lives.
    pub role: Role,
}

/// What a buffer is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// Its contents do not outlive the step; plans that never run at the same time may share the memory.
    Scratch,
    /// Scratch that the host itself reads or writes, where it shares the device's memory: no other value and no other plan has
    /// a part of it, so that what a segment leaves there lasts until the segment runs again.
    Shared,
    /// Tensor `.0` of the persistent state: one buffer for all plans of a device.
    State(usize),
    /// Constants, written once.
    Table(Vec<u32>),
}

/// A part of the step without a cross-shard sum inside: upload, run the commands in order, download.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Filled by the host before the commands.
    pub uploads: Vec<Transfer>,
    /// In execution order.
    pub commands: Vec<Command>,
    /// Read by the host after the commands.
    pub downloads: Vec<Transfer>,
}

/// Bytes between host and device.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// What the bytes are: an index that the maker of the plan gives a meaning to.
    pub slot: usize,
    /// Where they are on the device.
    pub slice: Slice,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte; when bound to a kernel, a multiple of [`crate::target::Target::binding_alignment`].
    pub offset: u64,
    /// Length in bytes, a multiple of 4.
    pub bytes: u64,
}

/// One thing a device does.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run a kernel.
    Launch(Launch),
    /// Copy `from` to `to`, two different buffers, the same length.
    Copy {
        /// Source.
        from: Slice,
        /// Destination.
        to: Slice,
    },
    /// Fill with zero bytes.
    Clear(Slice),
}

/// One dispatch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Which kernel.
    pub kernel: KernelId,
    /// What it is bound to, in the order of [`Kernel::bindings`].
    pub bindings: Vec<Slice>,
    /// The uniform at binding 0; at most 64 words.
    pub params: Vec<u32>,
    /// Workgroups in x, y, z; each at most [`crate::target::Target::max_workgroups`], none zero.
    pub grid: [u32; 3],
}

impl Plan {
    /// Bytes of scratch the plan needs: what has to be allocated beside the state.
    pub fn scratch_bytes(&self) -> u64 {
        self.buffers.iter().filter(|b| matches!(b.role, Role::Scratch | Role::Shared)).map(|b| b.bytes).sum()
    }

    /// Kernel launches of one step.
    pub fn launches(&self) -> usize {
        let of = |s: &Segment| s.commands.iter().filter(|c| matches!(c, Command::Launch(_))).count();
        self.segments.iter().map(of).sum()
    }
}
