//! Where the time went, and who left.

use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

use crate::observe::timeline::{Activity, Span};

/// What a replica did so far.
#[derive(Clone, Debug)]
pub struct ReplicaReport {
    /// Its number.
    pub replica: usize,
    /// Its adapter.
    pub adapter: String,
    /// Its thread.
    pub thread: ThreadId,
    /// Shards it ran.
    pub shards: u64,
    /// Samples in them.
    pub samples: u64,
    /// Steps it took part in, with shards or without.
    pub steps: u64,
    /// It had nothing to do between two steps: most often, it waited for input.
    pub input: Duration,
    /// It copied its part of the batch, or sums, towards its device.
    pub upload: Duration,
    /// Its device worked, by its own clock; where it has none, the driver's time is in this too.
    pub compute: Duration,
    /// Its driver recorded and submitted, and work was on the way to the device and back, where the device has a clock.
    pub driver: Duration,
    /// It copied sums of its shards to the host, or the host added those of all.
    pub exchange: Duration,
    /// It waited for others, and for the verdict.
    pub peers: Duration,
    /// It made plans and pipelines, or wrote and read the state.
    pub loading: Duration,
    /// When and why it left, if it did.
    pub left: Option<Left>,
}

/// A replica that is no longer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its adapter.
    pub adapter: String,
    /// Its number.
    pub replica: usize,
    /// The call of [`crate::Replicas::step`] that it happened in or after, from 0.
    pub step: u64,
    /// What happened.
    pub why: String,
    /// What it had no memory for, and how many bytes of that, if that is why; 0 where it is not known.
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
            input: zero,
            upload: zero,
            compute: zero,
            driver: zero,
            exchange: zero,
            peers: zero,
            loading: zero,
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
            // Beside the others, not one of them.
            Activity::Device => return,
        };
        *total += span.length();
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} ({}) left at step {}: {}", self.replica, self.adapter, self.step, self.why)
    }
}
