//! Counts of what a device does through its driver.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Device;

/// What a device did through its driver since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of submissions to the queue. Not counted: the trial launches and copies when a plan is
    /// loaded, and [`Device::poison_scratch`].
    pub submissions: u64,
    /// The number of times that the host waited for the device.
    pub waits: u64,
    /// The number of plans that were loaded.
    pub loads: u64,
    /// The number of distinct compiled kernels that the device holds now.
    pub kernels: u64,
    /// The number of query sets that were created for timestamps.
    pub query_sets: u64,
    /// The bytes that the host uploaded for plans.
    pub uploaded: u64,
    /// The bytes that the host downloaded for plans.
    pub downloaded: u64,
    /// The bytes of resident memory that there is now.
    pub resident: u64,
}

/// The counts as the device keeps them.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    submissions: AtomicU64,
    waits: AtomicU64,
    loads: AtomicU64,
    query_sets: AtomicU64,
    uploaded: AtomicU64,
    downloaded: AtomicU64,
}

impl Counted {
    pub fn submission(&self) {
        self.submissions.fetch_add(1, Ordering::Relaxed);
    }

    pub fn wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn load(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    pub fn upload(&self, bytes: u64) {
        self.uploaded.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn download(&self, bytes: u64) {
        self.downloaded.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn query_set(&self) {
        self.query_sets.fetch_add(1, Ordering::Relaxed);
    }
}

impl Device {
    /// Returns how often the host submitted work, waited for it and loaded plans, and what there is for that.
    pub fn counters(&self) -> Counters {
        Counters {
            submissions: self.counters.submissions.load(Ordering::Relaxed),
            waits: self.counters.waits.load(Ordering::Relaxed),
            loads: self.counters.loads.load(Ordering::Relaxed),
            kernels: self.kernels() as u64,
            query_sets: self.counters.query_sets.load(Ordering::Relaxed),
            uploaded: self.counters.uploaded.load(Ordering::Relaxed),
            downloaded: self.counters.downloaded.load(Ordering::Relaxed),
            resident: self.memory().resident,
        }
    }
}
