//! What a predictor did: how many samples, how long they took, and the memory that it holds.

use std::fmt;
use std::time::Duration;

use unisono_replica::ReplicaReport;

use crate::MemoryEstimate;
use crate::predictor::Predictor;

/// The number of the last answers whose latency is kept.
const KEPT: usize = 10_000;

/// The latencies of the last answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    samples: u64,
    batches: u64,
    busy: Duration,
    /// The last latencies; the oldest is at `next` once there are [`KEPT`].
    latencies: Vec<Duration>,
    next: usize,
    /// Whether latencies are those of single rows, which their server measures.
    by_row: bool,
}

impl Clock {
    /// Notes a batch, which took so long.
    pub fn batch(&mut self, samples: usize, took: Duration) {
        self.samples += samples as u64;
        self.batches += 1;
        self.busy += took;
        if !self.by_row {
            self.keep(took);
        }
    }

    /// Notes that latencies are those of rows from now on.
    pub fn by_row(&mut self) {
        (self.by_row, self.next) = (true, 0);
        self.latencies.clear();
    }

    /// Notes that latencies are those of batches from now on.
    pub fn by_batch(&mut self) {
        self.by_row = false;
    }

    /// Notes how long an answer took.
    pub fn keep(&mut self, took: Duration) {
        if self.latencies.len() < KEPT {
            self.latencies.push(took);
        } else {
            self.latencies[self.next] = took;
            self.next = (self.next + 1) % KEPT;
        }
    }
}

/// What a [`Predictor`] did. Prints as three lines, and one for each note.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PredictorReport {
    /// The number of samples that were predicted.
    pub samples: u64,
    /// The number of batches.
    pub batches: u64,
    /// The total time of these batches.
    pub busy: Duration,
    /// The median latency of an answer, over the last 10,000: of a batch, or, behind a
    /// [`Server`](crate::Server), of a row from its arrival on.
    pub median: Duration,
    /// The latency that 95 of 100 answers stay within.
    pub p95: Duration,
    /// The longest latency.
    pub longest: Duration,
    /// The number of lengths of samples that are ready now, the longest among them.
    pub lengths: usize,
    /// What a batch takes of a device's memory: parameters and statistics, and everything else.
    pub memory: MemoryEstimate,
    /// The replicas, those that left too.
    pub replicas: Vec<ReplicaReport>,
    /// Notes about the loaders: rows are not in the order of the source because a loader shuffles, some are
    /// missing because it drops the last batch, or transforms changed samples at random.
    pub notes: Vec<String>,
}

impl Predictor {
    /// Returns what the predictor did so far, its latency and the memory that it takes.
    pub fn report(&self) -> PredictorReport {
        let Clock { samples, batches, busy, latencies, .. } = &self.clock;
        let mut sorted = latencies.clone();
        sorted.sort_unstable();
        // Nearest rank.
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        PredictorReport {
            samples: *samples,
            batches: *batches,
            busy: *busy,
            median: at(0.5),
            p95: at(0.95),
            longest: at(1.0),
            lengths: self.programs.len(),
            memory: self.memory.clone(),
            replicas: self.replicas.reports(),
            notes: self.notes.iter().cloned().collect(),
        }
    }
}

impl fmt::Display for PredictorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, batches, busy, median, p95, longest, memory, replicas, .. } = self;
        let rate = *samples as f64 / busy.as_secs_f64().max(f64::MIN_POSITIVE);
        let ms = |time: &Duration| 1e3 * time.as_secs_f64();
        writeln!(
            f,
            "{samples} samples in {batches} batches on {} replicas, {rate:.0} samples/s",
            replicas.iter().filter(|replica| replica.left.is_none()).count()
        )?;
        let (median, p95, longest) = (ms(median), ms(p95), ms(longest));
        writeln!(f, "latency: median {median:.2} ms, 95% within {p95:.2} ms, longest {longest:.2} ms")?;
        write!(f, "memory of a device: {memory}")?;
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_keeps_the_last_answers() {
        let mut clock = Clock::default();
        (0..KEPT as u64 + 5).for_each(|ms| clock.batch(2, Duration::from_millis(ms)));
        assert_eq!((clock.samples, clock.batches), (2 * (KEPT as u64 + 5), KEPT as u64 + 5));
        assert_eq!(clock.latencies.iter().min(), Some(&Duration::from_millis(5)));
        clock.by_row();
        clock.batch(1, Duration::from_secs(1));
        clock.keep(Duration::from_millis(7));
        assert_eq!(clock.latencies, [Duration::from_millis(7)]);
        clock.by_batch();
        clock.batch(1, Duration::from_secs(1));
        assert_eq!(clock.latencies.len(), 2);
    }
}
