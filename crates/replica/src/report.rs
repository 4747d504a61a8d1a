//! Where the time went, and who left.

use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

use crate::message::Spent;

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
    /// Its device worked.
    pub compute: Duration,
    /// It waited for sums that others had a part in, and for the verdict.
    pub peers: Duration,
    /// It copied to and from host memory.
    pub moving: Duration,
    /// It had nothing to do between two steps: most often, it waited for input.
    pub idle: Duration,
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
            compute: zero,
            peers: zero,
            moving: zero,
            idle: zero,
            left: None,
        }
    }

    pub(crate) fn add(&mut self, spent: Spent) {
        self.compute += spent.compute;
        self.moving += spent.moving;
        self.peers += spent.peers;
        self.idle += spent.idle;
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} ({}) left at step {}: {}", self.replica, self.adapter, self.step, self.why)
    }
}
