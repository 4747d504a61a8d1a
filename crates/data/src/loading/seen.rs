//! Measurements: where the time went, and one line about it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The counters that all threads of one iterator add to.
#[derive(Debug)]
pub(crate) struct Meters {
    names: Vec<String>,
    /// The nanoseconds in each stage.
    stages: Vec<AtomicU64>,
    /// Whether each stage drew at random.
    drew: Vec<AtomicBool>,
    samples: AtomicU64,
    /// The nanoseconds that threads waited for a ticket.
    pub idle: AtomicU64,
}

impl Meters {
    pub fn new(names: Vec<String>) -> Self {
        let stages = names.iter().map(|_| AtomicU64::new(0)).collect();
        let drew = names.iter().map(|_| AtomicBool::new(false)).collect();
        Self { names, stages, drew, samples: AtomicU64::new(0), idle: AtomicU64::new(0) }
    }

    /// Returns a clock for one batch, so that threads meet at the counters only once a batch.
    pub fn clock(&self) -> Clock<'_> {
        Clock { meters: self, stages: vec![0; self.stages.len()] }
    }

    /// Returns the names of the stages that drew at random so far.
    pub fn drawn(&self) -> Vec<String> {
        let drew = self.names.iter().zip(&self.drew).filter(|(_, drew)| drew.load(Ordering::Relaxed));
        drew.map(|(name, _)| name.clone()).collect()
    }

    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    pub fn stages(&self) -> Vec<StageTime> {
        let times = self.stages.iter().map(|time| Duration::from_nanos(time.load(Ordering::Relaxed)));
        self.names.iter().cloned().zip(times).map(|(name, time)| StageTime { name, time }).collect()
    }
}

/// The times of one batch.
pub(crate) struct Clock<'a> {
    meters: &'a Meters,
    stages: Vec<u64>,
}

impl Clock<'_> {
    /// Adds the time since `since` to a stage. Returns the present time.
    pub fn add(&mut self, stage: usize, since: Instant) -> Instant {
        let now = Instant::now();
        if let Some(time) = self.stages.get_mut(stage) {
            *time += (now - since).as_nanos() as u64;
        }
        now
    }

    /// Notes that a stage drew at random.
    pub fn drew(&self, stage: usize) {
        if let Some(drew) = self.meters.drew.get(stage) {
            drew.store(true, Ordering::Relaxed);
        }
    }

    /// Adds the batch to the counters.
    pub fn finish(self, samples: u64) {
        for (total, time) in self.meters.stages.iter().zip(self.stages) {
            total.fetch_add(time, Ordering::Relaxed);
        }
        self.meters.samples.fetch_add(samples, Ordering::Relaxed);
    }
}

/// The measurements of one [`Batches`](crate::Batches) so far. Printing it gives a table and the verdict.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// The time since the threads started.
    pub elapsed: Duration,
    /// The time that the consumer waited for batches that were not ready.
    pub waited: Duration,
    /// The time that all threads together waited because enough batches were ready.
    pub idle: Duration,
    /// The number of samples in batches that threads have finished.
    pub produced: u64,
    /// The number of samples in batches that the consumer has taken.
    pub consumed: u64,
    /// The number of batches that are ready now.
    pub ready: usize,
    /// The number of batches that may now be ready or in preparation.
    pub depth: usize,
    /// The number of threads.
    pub threads: usize,
    /// The time in each stage, summed over threads: fetch, transforms in order, stack, batch transforms in
    /// order.
    pub stages: Vec<StageTime>,
}

/// The time spent in one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageTime {
    /// The stage's name: "fetch", "map 'crop'", "stack" or "map_batch 'mixup'".
    pub name: String,
    /// The time, summed over threads.
    pub time: Duration,
}

impl Seen {
    /// Returns how many samples the threads finish in a second of the elapsed time.
    pub fn produced_per_second(&self) -> f64 {
        rate(self.produced, self.elapsed)
    }

    /// Returns how many samples the consumer took in a second of the elapsed time.
    pub fn consumed_per_second(&self) -> f64 {
        rate(self.consumed, self.elapsed)
    }

    /// Returns the stage that took most of the threads' time.
    pub fn slowest(&self) -> Option<&StageTime> {
        self.stages.iter().max_by_key(|stage| stage.time).filter(|stage| !stage.time.is_zero())
    }

    /// Returns one line that tells whether the consumer had to wait, and for which stage.
    ///
    /// It begins with "input kept up" if the consumer waited for less than 5 % of the time.
    pub fn verdict(&self) -> String {
        let waited = share(self.waited, self.elapsed);
        let Some(slowest) = self.slowest() else { return "no batch yet".into() };
        let work = self.stages.iter().map(|stage| stage.time).sum();
        let (name, part) = (&slowest.name, share(slowest.time, work));
        let each = slowest.time.as_secs_f64() * 1e3 / self.produced.max(1) as f64;
        let pace = if waited < 5.0 { "input kept up" } else { "input was the bottleneck" };
        format!(
            "{pace}: waited {waited:.0}% of {:.1} s; slowest stage {name}: {part:.0}% of the work, {each:.3} ms per sample",
            self.elapsed.as_secs_f64()
        )
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>12.0} samples/s produced", self.produced_per_second())?;
        writeln!(f, "{:>12.0} samples/s consumed", self.consumed_per_second())?;
        writeln!(f, "{:>12} of {} batches ready, {} threads", self.ready, self.depth, self.threads)?;
        let capacity = self.elapsed * self.threads as u32;
        writeln!(f, "{:>11.1}% of the time the consumer waited", share(self.waited, self.elapsed))?;
        writeln!(f, "{:>11.1}% of the threads' time was idle", share(self.idle, capacity))?;
        for stage in &self.stages {
            let each = stage.time.as_secs_f64() * 1e6 / self.produced.max(1) as f64;
            writeln!(f, "{each:>12.1} us a sample in {}", stage.name)?;
        }
        f.write_str(&self.verdict())
    }
}

fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Returns the share in percent.
fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { 100.0 * part.as_secs_f64() / whole.as_secs_f64() }
}
