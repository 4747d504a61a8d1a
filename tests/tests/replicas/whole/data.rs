//! Data that come late, or fail, or ask the run to stop as they are read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unisono::Stop;
use unisono::data::{ContentHash, Coverage, DataError, FieldSpec, Loader, Memory, Sample, Source};
use unisono_tests::blobs;

use super::plan::Reading;

/// The number of samples for training: four steps of [`BATCH`] in an epoch.
pub const SAMPLES: usize = 50;
/// The number of samples held out: two steps of evaluation.
pub const HELD_OUT: usize = 20;
/// The number of samples in a step.
pub const BATCH: usize = 16;
/// The message of a sample that cannot be read.
pub const INJECTED: &str = "injected: the sample cannot be read";

/// A source whose reads are disturbed.
struct Rough {
    samples: Memory,
    reading: Reading,
    stop: Stop,
    fetched: AtomicU64,
}

impl Source for Rough {
    fn len(&self) -> u64 {
        self.samples.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.samples.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let now = self.fetched.fetch_add(1, Ordering::SeqCst);
        if self.reading.naps {
            std::thread::sleep(Duration::from_micros(now.wrapping_mul(7919) % 5 * 60));
        }
        if self.reading.stops_at == Some(now) {
            self.stop.ask();
        }
        if self.reading.fails_at == Some(now) {
            return Err(DataError::other(INJECTED));
        }
        self.samples.fetch(index)
    }
    fn fingerprint(&self) -> u64 {
        self.samples.fingerprint()
    }
    fn coverage(&self) -> Coverage {
        self.samples.coverage()
    }
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.samples.hash_content(samples, hash)
    }
}

/// Returns the data for training (`held_out`: for evaluation), as a life reads them.
pub fn loader(held_out: bool, reading: &Reading, stop: &Stop) -> Loader {
    let samples = if held_out { blobs(HELD_OUT, 6) } else { blobs(SAMPLES, 5) }.unwrap();
    let rough =
        Rough { samples, reading: reading.clone(), stop: stop.clone(), fetched: AtomicU64::default() };
    let loader = Loader::new(Arc::new(rough)).threads(reading.threads).prefetch(reading.prefetch);
    if held_out { loader } else { loader.shuffle(5) }
}
