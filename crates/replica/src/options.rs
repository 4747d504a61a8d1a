//! How replicas work together.

use std::time::Duration;

use crate::schedule::Assignment;

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
    /// So has one that takes this many times what its measured pace says,
    pub patience: u32,
    /// if that is longer than this.
    pub grace: Duration,
    /// Most shards that a replica runs in one launch; less takes less memory and lets others take over shards that still
    /// wait. None: all of its shards. A program that does not run [`crate::in_pieces`] has all shards of a replica in one launch: there
    /// no replica is given more, as long as there are enough replicas for that.
    pub shards_at_once: Option<usize>,
    /// Every so many steps another replica runs some shards again, and its sums must be the same bytes; 0 for never.
    pub audit_every: u64,
    /// Sums of shards leave a device while it goes on, and are added as soon as all have sent theirs; otherwise they leave
    /// together at the end.
    pub overlap: bool,
    /// Only one replica updates, and the others are told its state after every step: so that adapters whose numbers differ
    /// in the last bits never drift apart.
    pub one_updates: bool,
    /// Keep what [`crate::Replicas::take_timeline`] tells.
    pub timeline: bool,
    /// Compile bounds checks into kernels and turn the driver's validation on.
    pub checked: bool,
    /// What the names of the run's fault points begin with; without the feature `faults` there are none.
    pub fault_scope: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            global_batch: 32,
            shards: 8,
            assignment: Assignment::Speed,
            deadline: Duration::from_secs(300),
            patience: 20,
            grace: Duration::from_secs(30),
            shards_at_once: None,
            audit_every: 0,
            overlap: true,
            one_updates: false,
            timeline: false,
            checked: false,
            fault_scope: String::new(),
        }
    }
}
