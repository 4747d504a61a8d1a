//! How many threads, and how many batches ahead: fixed, or following the measured pace within a budget of bytes.

use crate::sample::field::elements;
use crate::{DataError, FieldSpec};

/// Beyond these, a setting is taken for a mistake.
const MOST_THREADS: usize = 1024;
const MOST_PREFETCH: usize = 65_536;
/// How far ahead adapting goes at most: beyond, more batches only age.
const MOST_ADAPTIVE: usize = 1024;
/// So many batches in a row with a nearly full queue show that a smaller one would do.
const CALM: u32 = 64;

/// What the loader was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// So many threads; as many as it takes, up to one a core, unless told.
    pub threads: Option<usize>,
    pub prefetch: Prefetch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Prefetch {
    /// So many batches beyond one a thread.
    Fixed(usize),
    /// Batches of so many bytes together; a share of free memory unless told.
    Budget(Option<u64>),
}

impl Settings {
    /// An error for settings that cannot work.
    pub fn check(&self) -> Result<(), DataError> {
        let wrong = |setting, what: String| Err(DataError::Setting { setting, what });
        match self.threads {
            Some(threads) if !(1..=MOST_THREADS).contains(&threads) => {
                return wrong("threads", format!("{threads} is not within 1 and {MOST_THREADS}"));
            }
            _ => {}
        }
        match self.prefetch {
            Prefetch::Fixed(batches) if batches > MOST_PREFETCH => {
                wrong("prefetch", format!("{batches} is more than {MOST_PREFETCH} batches"))
            }
            _ => Ok(()),
        }
    }
}

/// How many threads and tickets there should be, updated batch by batch.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Threads that should run.
    pub threads: usize,
    /// Tickets that may be out: batches ready or in the making.
    pub window: usize,
    most_threads: usize,
    pub most_window: usize,
    least_window: usize,
    adaptive: bool,
    calm: u32,
    taken: u64,
}

impl Pace {
    pub fn new(settings: &Settings, fields: &[FieldSpec], batch: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match settings.prefetch {
            Prefetch::Fixed(prefetch) => {
                let threads = settings.threads.unwrap_or(cores.min(8));
                let window = threads + prefetch;
                Self {
                    threads,
                    window,
                    most_threads: threads,
                    most_window: window,
                    least_window: window,
                    adaptive: false,
                    calm: 0,
                    taken: 0,
                }
            }
            Prefetch::Budget(bytes) => {
                let sample: u64 =
                    fields.iter().map(|spec| 4 * elements(&spec.shape).unwrap_or(0) as u64).sum();
                let batch_bytes = sample.saturating_mul(batch).max(1);
                let fit = bytes.unwrap_or_else(share_of_free_memory) / batch_bytes;
                // One is needed to go on at all.
                let most_window = fit.clamp(1, MOST_ADAPTIVE as u64) as usize;
                let most_threads = settings.threads.unwrap_or(cores).min(most_window);
                let threads = settings.threads.unwrap_or(2).min(most_threads);
                let window = (threads + 1).min(most_window);
                let least_window = window;
                Self {
                    threads,
                    window,
                    most_threads,
                    most_window,
                    least_window,
                    adaptive: true,
                    calm: 0,
                    taken: 0,
                }
            }
        }
    }

    /// A batch was taken: `waited` if it was not ready, with `ready` more behind it.
    pub fn taken(&mut self, waited: bool, ready: usize) {
        self.taken += 1;
        // The first batches are always waited for.
        if !self.adaptive || self.taken <= self.threads as u64 {
            return;
        }
        if waited {
            self.calm = 0;
            if self.taken.is_multiple_of(2) {
                self.threads = (self.threads + 1).min(self.most_threads);
            }
            self.window = (self.window + (self.window / 2).max(1)).min(self.most_window);
        } else if ready + self.threads >= self.window {
            self.calm += 1;
            if self.calm >= CALM {
                self.calm = 0;
                self.window =
                    (self.window - 1).max(self.least_window.max(self.threads).min(self.most_window));
            }
        }
    }
}

/// An eighth of the memory that the system calls available; 256 MiB where it does not say.
fn share_of_free_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map_or(256 << 20, |kibibytes| kibibytes * 1024 / 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldDType;

    /// Samples of 4 KiB in batches of 16: 64 KiB a batch.
    fn pace(threads: Option<usize>, bytes: u64) -> Pace {
        let fields = [FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![1024] }];
        Pace::new(&Settings { threads, prefetch: Prefetch::Budget(Some(bytes)) }, &fields, 16)
    }

    #[test]
    fn the_window_grows_when_waited_for_and_stays_within_the_budget() {
        let mut pace = pace(Some(2), 10 << 16);
        assert_eq!((pace.threads, pace.window), (2, 3));
        for _ in 0..50 {
            pace.taken(true, 0);
        }
        assert_eq!((pace.threads, pace.window), (2, 10));
        for _ in 0..50 * CALM {
            pace.taken(false, 10);
        }
        assert_eq!((pace.threads, pace.window), (2, 3));
    }

    #[test]
    fn a_budget_below_a_batch_still_makes_one_at_a_time() {
        let mut pace = pace(Some(8), 1);
        for _ in 0..50 {
            pace.taken(true, 0);
        }
        assert_eq!((pace.threads, pace.window), (1, 1));
    }
}
