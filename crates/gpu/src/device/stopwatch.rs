//! Counts the time in which the process ran, by which deadlines are measured.

use std::time::{Duration, Instant};

/// Counts the time in which the process ran.
///
/// When a process is stopped (Ctrl-Z, SIGSTOP, a machine that sleeps), the host's clock goes on, and
/// deadlines pass although no work could be done. So a wait reads its stopwatch every [`Stopwatch::SLICE`].
/// When far more than that has passed since the last reading, the process was stopped, and the time counts as
/// one slice. (If the process ran but could not read its stopwatch, a deadline comes late, never early.)
#[derive(Clone, Debug)]
pub struct Stopwatch<N = fn() -> Instant> {
    now: N,
    looked: Instant,
    counted: Duration,
}

impl Stopwatch {
    /// The longest wait between two readings of the stopwatch.
    pub const SLICE: Duration = Duration::from_millis(250);

    /// Starts a stopwatch at zero.
    pub fn start() -> Self {
        Self::with(Instant::now)
    }
}

/// The time between two readings above which the process was stopped: no wait of one slice takes that long on
/// a busy machine.
const STOPPED: Duration = Duration::from_secs(1);

impl<N: Fn() -> Instant> Stopwatch<N> {
    /// Starts a stopwatch that reads another clock.
    fn with(now: N) -> Self {
        let looked = now();
        Self { now, looked, counted: Duration::ZERO }
    }

    /// Returns how long the process has run since the start.
    pub fn elapsed(&mut self) -> Duration {
        let now = (self.now)();
        let since = now.saturating_duration_since(self.looked);
        self.counted += if since > STOPPED { Stopwatch::SLICE } else { since };
        self.looked = now;
        self.counted
    }

    /// Returns how long to wait at most before the next reading, where something is due at a time of this
    /// stopwatch; zero if it is overdue.
    pub fn slice(&mut self, due: Option<Duration>) -> Duration {
        let now = self.elapsed();
        due.map_or(Stopwatch::SLICE, |due| due.saturating_sub(now).min(Stopwatch::SLICE))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Waits in slices until `due`. Each slice takes what `took` returns for it. Returns the number of
    /// slices, and what the host's clock then shows.
    fn wait(due: Duration, took: impl Fn(u32, Duration) -> Duration) -> (u32, Duration) {
        let (start, clock) = (Instant::now(), Cell::new(Duration::ZERO));
        let mut watch = Stopwatch::with(|| start + clock.get());
        for waits in 0..10_000 {
            let slice = watch.slice(Some(due));
            if slice.is_zero() {
                return (waits, clock.get());
            }
            assert!(slice <= Stopwatch::SLICE);
            clock.set(clock.get() + took(waits, slice));
        }
        panic!("it never ends");
    }

    #[test]
    fn a_deadline_is_met_where_nothing_stops() {
        assert_eq!(wait(3001 * MS, |_, slice| slice), (13, 3001 * MS));
        // On a busy machine each wait takes a little longer than it was to.
        let (_, took) = wait(3000 * MS, |_, slice| slice + 40 * MS);
        assert!((3000 * MS..=3290 * MS).contains(&took), "{took:?}");
    }

    #[test]
    fn a_stop_counts_as_one_slice_however_long_it_is() {
        let stop = |waits, slice| if waits == 5 { Duration::from_secs(40_000) } else { slice };
        assert_eq!(wait(3000 * MS, stop), (12, Duration::from_secs(40_000) + 2750 * MS));
    }

    #[test]
    fn work_between_two_looks_counts() {
        let (start, clock) = (Instant::now(), Cell::new(Duration::ZERO));
        let mut watch = Stopwatch::with(|| start + clock.get());
        for after in [900, 1800, 2700] {
            clock.set(after * MS);
            assert_eq!(watch.elapsed(), after * MS);
        }
        assert_eq!(watch.slice(None), Stopwatch::SLICE);
        assert_eq!(watch.slice(Some(2710 * MS)), 10 * MS);
        assert_eq!(watch.slice(Some(9 * MS)), Duration::ZERO);
    }
}
