//! The options of a run on replicas.

use std::time::Duration;

use crate::schedule::{Assignment, Audits};

/// The default number of samples of a full batch.
pub const DEFAULT_GLOBAL_BATCH: usize = 32;
/// The default number of shards into which a full batch is cut.
pub const DEFAULT_SHARDS: usize = 8;

/// How replicas work together. `global_batch` and `shards` are part of what is computed. The other options
/// never change the result.
///
/// Make them with [`Options::default`] and [`Options::with`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// The number of samples of a full batch. Default: 32 ([`DEFAULT_GLOBAL_BATCH`]).
    pub global_batch: usize,
    /// The number of shards that a full batch is cut into. At most this many replicas can share the work.
    /// Default: 8 ([`DEFAULT_SHARDS`]).
    pub shards: usize,
    /// How shards are assigned to replicas. Default: [`Assignment::Speed`].
    pub assignment: Assignment,
    /// The time after which a replica that does not answer counts as lost. Loading a plan compiles kernels
    /// and gets at least five minutes. Default: 300 s.
    pub deadline: Duration,
    /// How many times slower than its measured pace a replica may be before it counts as lost. Default: 20.
    pub patience: u32,
    /// The shortest time after which a slow replica counts as lost, whatever its pace. Default: 30 s.
    pub grace: Duration,
    /// The maximum number of shards that a replica computes in one launch. Fewer take less memory, and other
    /// replicas can take over shards that still wait. A program for which [`crate::can_run_few_at_once`] is
    /// false computes all shards of a replica in one launch. Its replicas are then assigned no more shards
    /// than this, if there are enough replicas. Default: none, all shards of a replica.
    pub shards_at_once: Option<usize>,
    /// How often a step is audited: recomputed by other replicas, which must give the same bytes. Default:
    /// [`Audits::Never`].
    pub audits: Audits,
    /// Whether a bucket of sums leaves a device while the device still computes. It is summed as soon as all
    /// replicas have sent it. Otherwise all buckets leave together at the end. Default: true.
    pub overlap: bool,
    /// The maximum number of steps that one replica has in flight: 1 or 2. With 2, a step is submitted while
    /// the device computes the previous one ([`crate::Replicas::begin`]). Several replicas make one step at a
    /// time. Default: none, which means 2 on a GPU, and 1 on a CPU adapter, whose kernels share the cores
    /// with the host.
    pub steps_in_flight: Option<usize>,
    /// Whether only one replica updates the state, and the others copy it after every step. Adapters that
    /// round differently then never drift apart. Default: false.
    pub one_updates: bool,
    /// The number of replicas that store each tensor of the optimizer state, if this state is sharded
    /// ([`crate::Owners`]). The programs' tensors must have buffers of their own. Default: none, every
    /// replica stores all of it.
    pub owners: Option<usize>,
    /// Divides the number of cores that CPU adapters use. With 4 they use a quarter. Default: 1.
    pub cores_divided_by: usize,
    /// Whether to record what [`crate::Replicas::take_timeline`] returns. Default: false.
    pub timeline: bool,
    /// Whether to compile bounds checks into kernels and to turn the driver's validation on. Default: false.
    pub checked: bool,
    /// Whether devices count their passes. A replica whose driver drops commands and reports them as done
    /// then counts as lost: see [`unisono_gpu::Options::marks`]. Default: none, which means on every backend
    /// but the CPU.
    pub marks: Option<bool>,
    /// A prefix of the names of the run's fault points. It has no effect without the feature `faults`.
    /// Default: empty.
    pub fault_scope: String,
}

impl Options {
    /// Returns these options, changed: `Options::default().with(|options| options.shards = 4)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            global_batch: DEFAULT_GLOBAL_BATCH,
            shards: DEFAULT_SHARDS,
            assignment: Assignment::Speed,
            deadline: Duration::from_secs(300),
            patience: 20,
            grace: Duration::from_secs(30),
            shards_at_once: None,
            audits: Audits::Never,
            overlap: true,
            steps_in_flight: None,
            one_updates: false,
            owners: None,
            cores_divided_by: 1,
            timeline: false,
            checked: false,
            marks: None,
            fault_scope: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/REPLICAS.md gives these numbers.
    #[test]
    fn the_defaults_are_those_that_the_documents_give() {
        let options = Options::default();
        assert_eq!((options.global_batch, options.shards), (DEFAULT_GLOBAL_BATCH, 8));
        assert_eq!(options.assignment, Assignment::Speed);
        let seconds = [options.deadline, options.grace].map(|time| time.as_secs());
        assert_eq!((seconds, options.patience), ([300, 30], 20));
        assert_eq!((options.shards_at_once, options.steps_in_flight, options.owners), (None, None, None));
        assert!(options.overlap && !options.one_updates && options.audits == Audits::Never);
    }
}
