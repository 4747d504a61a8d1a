//! How replicas work together.

use std::time::Duration;

use crate::assign::Assignment;

/// How replicas work together. `global_batch` and `shards` are part of what is computed; nothing else is.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Samples of a full batch.
    pub global_batch: usize,
    /// Shards a full batch is cut into: as many replicas can share the work.
    pub shards: usize,
    /// Who runs which.
    pub assignment: Assignment,
    /// A replica that does not answer for so long has left. Loading, which compiles, has five minutes at least.
    pub deadline: Duration,
    /// Compile bounds checks into kernels and turn the driver's validation on.
    pub checked: bool,
    /// What goes wrong on purpose.
    #[doc(hidden)]
    pub faults: Vec<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            global_batch: 32,
            shards: 8,
            assignment: Assignment::Even,
            deadline: Duration::from_secs(300),
            checked: false,
            faults: Vec::new(),
        }
    }
}

/// Something that goes wrong on purpose, before a replica runs a segment of a step.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub replica: usize,
    pub step: u64,
    pub segment: usize,
    pub kind: FaultKind,
}

/// What goes wrong.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The thread panics.
    Panic,
    /// The device is lost.
    Lose,
    /// The device has no memory left.
    OutOfMemory,
    /// It takes this long.
    Stall(Duration),
    /// A bit of this tensor of the state flips.
    Corrupt(usize),
}
