//! A replica's report: where its time went, and whether it left.

use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

use crate::observe::timeline::{Activity, Span};

/// What a replica did so far.
#[derive(Clone, Debug)]
pub struct ReplicaReport {
    /// The number of the replica.
    pub replica: usize,
    /// The label of its adapter.
    pub adapter: String,
    /// The thread that owns its device; if the system gave it none, the one that asked for it.
    pub thread: ThreadId,
    /// The number of shards that it ran.
    pub shards: u64,
    /// The number of samples in these shards.
    pub samples: u64,
    /// The number of steps in which it took part, with shards or without.
    pub steps: u64,
    /// The number of steps that were submitted while the one before was in flight.
    pub overlapped: u64,
    /// The bytes of sums over all shards that its device was given.
    pub received: u64,
    /// The part of [`ReplicaReport::received`] that the host wrote directly to where the device reads it,
    /// while devices were still computing.
    pub received_early: u64,
    /// The number of submissions to its device for steps, and for reading and writing the state. Loading
    /// plans submits more, which is not counted.
    pub submissions: u64,
    /// The number of times that it waited for its device, loading included.
    pub waits: u64,
    /// The number of plans that it has loaded. It keeps the sixteen that it used last.
    pub loads: u64,
    /// The number of distinct compiled kernels that its device holds.
    pub kernels: u64,
    /// The bytes that it uploaded to its device for steps.
    pub uploaded: u64,
    /// The bytes that the replica downloaded from its device for steps, including steps in flight.
    pub downloaded: u64,
    /// The bytes of resident memory on its device now.
    pub resident: u64,
    /// The time in which it had nothing to do between two steps: most often it waited for input.
    pub input: Duration,
    /// The time in which it copied its part of the batch, or sums, to its device.
    pub upload: Duration,
    /// The time in which its device worked, by the device's clock; where it has none, this includes the
    /// driver's time.
    pub compute: Duration,
    /// The time in which its driver recorded and submitted, and work was on its way to the device and back.
    /// It is zero where the device has no clock.
    pub driver: Duration,
    /// The time in which it copied sums of its shards to the host, or the host added the sums of all.
    pub exchange: Duration,
    /// The time in which it waited for other replicas, or for the caller's verdict.
    pub peers: Duration,
    /// The time in which it made plans and pipelines, or wrote and read the state.
    pub loading: Duration,
    /// The bytes of the state on its device: all tensors, or those that it has where what the optimizer keeps
    /// is shared out among replicas.
    pub state_bytes: u64,
    /// When and why it left; none if it has not left.
    pub left: Option<Left>,
}

/// A replica that left, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The label of its adapter.
    pub adapter: String,
    /// The number of the replica.
    pub replica: usize,
    /// The call of [`crate::Replicas::step`], from 0, in which or after which it left.
    pub step: u64,
    /// What happened.
    pub why: String,
    /// What it had no memory for, if it left for lack of memory, and the bytes that were asked for (0 where
    /// unknown).
    pub out_of_memory: Option<(String, u64)>,
}

impl ReplicaReport {
    pub(crate) fn new(replica: usize, adapter: String, thread: ThreadId) -> Self {
        let zero = Duration::ZERO;
        Self {
            replica,
            adapter,
            thread,
            shards: 0,
            samples: 0,
            steps: 0,
            overlapped: 0,
            received: 0,
            received_early: 0,
            submissions: 0,
            waits: 0,
            loads: 0,
            kernels: 0,
            uploaded: 0,
            downloaded: 0,
            resident: 0,
            input: zero,
            upload: zero,
            compute: zero,
            driver: zero,
            exchange: zero,
            peers: zero,
            loading: zero,
            state_bytes: 0,
            left: None,
        }
    }

    pub(crate) fn add(&mut self, span: &Span) {
        let total = match span.activity {
            Activity::Input => &mut self.input,
            Activity::Upload => &mut self.upload,
            Activity::Compute => &mut self.compute,
            Activity::Driver => &mut self.driver,
            Activity::Exchange => &mut self.exchange,
            Activity::Peers => &mut self.peers,
            Activity::Loading => &mut self.loading,
            // The device's own stretches lie beside the others and are no part of the sum.
            Activity::Device | Activity::Machines => return,
        };
        *total += span.length();
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} ({}) left at step {}: {}", self.replica, self.adapter, self.step, self.why)
    }
}
