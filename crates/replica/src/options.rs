//! The options of a run on replicas.

use std::time::Duration;

use crate::schedule::{Assignment, Audits};

/// The default number of samples of a full batch.
pub const DEFAULT_GLOBAL_BATCH: usize = 32;
/// The default number of shards into which a full batch is cut.
pub const DEFAULT_SHARDS: usize = 8;

/// How replicas work together. `global_batch` and `shards` are part of what is computed; the other options
/// change no bit.
///
/// Make them with [`Options::default`] and [`Options::with`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// The number of samples of a full batch. Default: 32 ([`DEFAULT_GLOBAL_BATCH`]).
    pub global_batch: usize,
    /// The number of shards into which a full batch is cut: at most so many replicas share the work. Default:
    /// 8 ([`DEFAULT_SHARDS`]).
    pub shards: usize,
    /// How shards are assigned to replicas. Default: [`Assignment::Speed`].
    pub assignment: Assignment,
    /// The time after which a replica that does not answer counts as lost. Loading, which compiles, has five
    /// minutes at least. Default: 300 s.
    pub deadline: Duration,
    /// How many times longer than its measured pace says a replica may take before it counts as lost.
    /// Default: 20.
    pub patience: u32,
    /// The shortest time after which a slow replica counts as lost, whatever its pace. Default: 30 s.
    pub grace: Duration,
    /// The most shards that a replica runs in one launch. Fewer take less memory, and other replicas can take
    /// over shards that still wait. A program for which [`crate::can_run_few_at_once`] is false runs all
    /// shards of a replica in one launch: there no replica is assigned more than this, as long as there are
    /// enough replicas for that. Default: none, which means all of a replica's shards.
    pub shards_at_once: Option<usize>,
    /// How often a step is audited: made again by other replicas, which must give the same bytes. Default:
    /// [`Audits::Never`].
    pub audits: Audits,
    /// Whether a bucket of sums leaves a device while the device goes on, and is added as soon as all
    /// replicas have sent it. Otherwise all buckets leave together at the end. Default: true.
    pub overlap: bool,
    /// The most steps that one replica has in flight: with 2, a step is submitted while the device computes
    /// the one before it ([`crate::Replicas::begin`]). More are 2. Several replicas make one step at a time.
    /// Default: none, which means 2 on a GPU, and 1 on a CPU adapter, whose kernels share the cores with the
    /// host.
    pub steps_in_flight: Option<usize>,
    /// Whether only one replica updates the state and the others copy it after every step, so that adapters
    /// whose results differ in the last bits never drift apart. Default: false.
    pub one_updates: bool,
    /// The number of owners of each tensor that the optimizer keeps, if these tensors are shared out among
    /// replicas, see [`crate::Owners`]. The programs' tensors must have buffers of their own. Default: none,
    /// which means that each replica has all of them.
    pub owners: Option<usize>,
    /// Divides the number of cores that CPU adapters use: with 4 they use a quarter. Default: 1.
    pub cores_divided_by: usize,
    /// Whether to record what [`crate::Replicas::take_timeline`] returns. Default: false.
    pub timeline: bool,
    /// Whether to compile bounds checks into kernels and to turn the driver's validation on. Default: false.
    pub checked: bool,
    /// Whether devices count their passes, so that a replica whose driver drops commands and reports them as
    /// done counts as lost: see [`unisono_gpu::Options::marks`]. Default: none, which means on every
    /// backend but the CPU.
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
