//! The pace: how many threads there are, and how many batches they prepare ahead. Both are fixed, or follow
//! the measured pace within a budget of bytes.

use crate::sample::field::elements;
use crate::{DataError, FieldSpec};

/// The most threads. A larger setting is taken for a mistake.
const MOST_THREADS: usize = 1024;
/// The most batches of a fixed prefetch. A larger setting is taken for a mistake.
const MOST_PREFETCH: usize = 65_536;
/// The largest window that adapting reaches: beyond it, more batches only wait longer.
const MOST_ADAPTIVE: usize = 1024;
/// After this many batches in a row with a nearly full queue, a smaller window is tried.
const CALM: u32 = 64;

/// The loader's settings of threads and prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The number of threads. Default: as many as needed, up to one a core.
    pub threads: Option<usize>,
    pub prefetch: Prefetch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Prefetch {
    /// Prepare this many batches in addition to one for each thread.
    Fixed(usize),
    /// Prepare batches that take up to this many bytes together. Default: a share of the free memory.
    Budget(Option<u64>),
}

impl Settings {
    /// Checks the settings. Those that cannot work are an error.
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

/// The number of threads and tickets that there should be, updated batch by batch.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// The number of threads that should run.
    pub threads: usize,
    /// The number of tickets that may be out, which are batches ready or in preparation.
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
                // Without at least one batch, nothing proceeds.
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

    /// Notes that a batch was taken. `waited` tells that it was not ready, and `ready` how many more were.
    pub fn taken(&mut self, waited: bool, ready: usize) {
        self.taken += 1;
        // The consumer always waits for the first batches, so they say nothing about the pace.
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

/// Returns an eighth of the memory that the system calls available, or 256 MiB where the system does not say.
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

    /// Returns the pace for samples of 4 KiB in batches of 16, which take 64 KiB each.
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
