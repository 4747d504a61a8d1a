//! The device's own clock: it tells when the launches of a submission began and ended, in the host's time.
//!
//! A part of a segment writes two timestamps, at the beginning of its first pass and at the end of its last
//! one. They arrive with its downloads, so that they cost no wait. The clocks of host and device start at
//! different moments and run at slightly different speeds. So each part bounds their difference anew, because
//! the device cannot have begun before the host submitted, nor ended after the host saw the end. The last
//! known difference is moved into these bounds, so no error adds up. Timestamps that contradict themselves
//! (time that stands still, goes backwards, or is more than has passed) are dropped, because a clock of 36
//! bits wraps within an hour or so. Several in a row turn the clock off for good.
//!
//! All timestamps of a device are in one query set: a process on macOS may have 32 of them, and one more
//! loses the device. Parts take pairs from it and give them back.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unisono_graph::plan::{Slice, Transfer};

use crate::device::fault::{hold, scoped};
use crate::{Backend, Device, GpuError};

/// The bytes of two timestamps.
const BYTES: u64 = 2 * wgpu::QUERY_SIZE as u64;
/// The number of pairs of timestamps that a device has. Parts beyond that have none.
const PAIRS: u32 = 256;
/// The seconds by which a device may seem to have worked longer than the host waited: clocks differ by that
/// much.
const SLACK: f64 = 50e-6;
/// How many contradictions in a row turn the clock off.
const MOST_DOUBTS: u32 = 4;

/// A stretch of time in which a device worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The time at which the first launch began.
    pub from: Instant,
    /// The time at which the last launch ended.
    pub to: Instant,
}

/// Translates timestamps of the device into the host's time.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The seconds of a tick.
    period: f64,
    origin: Instant,
    state: Mutex<State>,
    /// The timestamps of all parts, which are there from the first part on.
    pairs: Mutex<Option<Pairs>>,
}

/// The pairs of timestamps of a device.
#[derive(Debug)]
struct Pairs {
    queries: wgpu::QuerySet,
    /// The pairs that no part has.
    free: Arc<Mutex<Vec<u32>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The first tick that was seen, and how many seconds after `origin` that was.
    known: Option<(u64, f64)>,
    /// How many of the last timestamps contradicted themselves.
    doubts: u32,
}

/// The pair of timestamps of a part, which is given back when it is dropped. A submission that still writes
/// it has its place in the order of the queue, as has the copy of what it writes.
#[derive(Debug)]
pub(crate) struct Timestamps {
    queries: wgpu::QuerySet,
    pair: u32,
    free: Arc<Mutex<Vec<u32>>>,
    resolved: wgpu::Buffer,
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        hold(&self.free).push(self.pair);
    }
}

impl Clock {
    /// Returns the clock of a device. Returns none where the device has no clock, and on GL, whose timestamps
    /// are the host's guess.
    pub fn new(device: &wgpu::Device, queue: &wgpu::Queue, backend: Backend) -> Option<Self> {
        let there = backend != Backend::Gl && device.features().contains(wgpu::Features::TIMESTAMP_QUERY);
        let period = f64::from(queue.get_timestamp_period()) * 1e-9;
        (there && period.is_normal() && period > 0.0).then(|| Self::with_period(period, Instant::now()))
    }

    fn with_period(period: f64, origin: Instant) -> Self {
        Self { period, origin, state: Mutex::default(), pairs: Mutex::new(None) }
    }

    pub fn is_on(&self) -> bool {
        hold(&self.state).doubts < MOST_DOUBTS
    }

    /// Returns the stretch between two ticks, for work that the host submitted and saw to be done at these
    /// times.
    pub fn stretch(&self, ticks: [u64; 2], submitted: Instant, done: Instant) -> Option<Stretch> {
        let mut state = hold(&self.state);
        let seconds = |time: Instant| time.saturating_duration_since(self.origin).as_secs_f64();
        let (earliest, latest) = (seconds(submitted), seconds(done));
        if state.doubts >= MOST_DOUBTS {
            return None;
        }
        let (first, known) = state.known.map_or((ticks[0], None), |(first, at)| (first, Some(at)));
        // Timestamps since the first one are few enough for all their digits.
        let [from, to] = ticks.map(|tick| tick.wrapping_sub(first) as i64 as f64 * self.period);
        let (least, most) = (earliest - from, latest - to);
        if ticks[0] == 0 || to <= from || least > most + SLACK {
            state.doubts += 1;
            return None;
        }
        let at = known.unwrap_or(least).max(least).min(most);
        *state = State { known: Some((first, at)), doubts: 0 };
        let time = |seconds: f64| self.origin + Duration::from_secs_f64((at + seconds).max(0.0));
        Some(Stretch { from: time(from), to: time(to) })
    }
}

impl Device {
    /// Returns timestamps for a part that launches something. Returns none if the device has no clock, or
    /// other parts have all of its timestamps.
    pub(crate) fn timestamps(&self) -> Result<Option<Timestamps>, GpuError> {
        let Some(clock) = self.clock.as_ref().filter(|clock| clock.is_on()) else { return Ok(None) };
        let mut pairs = hold(&clock.pairs);
        let Pairs { queries, free } = match &mut *pairs {
            Some(pairs) => pairs,
            none => none.insert(self.create_pairs()?),
        };
        let Some(pair) = hold(free).pop() else { return Ok(None) };
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: BYTES, usage, mapped_at_creation: false };
        let resolved = self.create("timestamps", &descriptor).inspect_err(|_| hold(free).push(pair))?;
        Ok(Some(Timestamps { queries: queries.clone(), pair, free: Arc::clone(free), resolved }))
    }

    fn create_pairs(&self) -> Result<Pairs, GpuError> {
        self.counters.query_set();
        let (ty, count) = (wgpu::QueryType::Timestamp, 2 * PAIRS);
        let queries = scoped(&self.raw, "timestamps", u64::from(PAIRS) * BYTES, || {
            self.raw.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count })
        })?;
        Ok(Pairs { queries, free: Arc::new(Mutex::new((0..PAIRS).rev().collect())) })
    }
}

impl Timestamps {
    /// Returns the transfer that reserves a place for the timestamps in staging memory.
    pub fn transfer() -> Transfer {
        Transfer { slot: 0, slice: Slice { buffer: usize::MAX, offset: 0, bytes: BYTES } }
    }

    /// Returns what a pass writes of them: the time at which it begins, the one at which it ends, or both.
    pub fn writes(&self, begins: bool, ends: bool) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        (begins || ends).then(|| wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: begins.then_some(2 * self.pair),
            end_of_pass_write_index: ends.then_some(2 * self.pair + 1),
        })
    }

    /// Records the copy of both timestamps to staging memory.
    pub fn fetch(&self, encoder: &mut wgpu::CommandEncoder, to: &wgpu::Buffer, offset: u64) {
        encoder.resolve_query_set(&self.queries, 2 * self.pair..2 * self.pair + 2, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, to, offset, BYTES);
    }

    /// Reads the two timestamps.
    pub fn read(bytes: &[u8]) -> Option<[u64; 2]> {
        let (first, rest) = bytes.split_first_chunk()?;
        Some([u64::from_le_bytes(*first), u64::from_le_bytes(*rest.first_chunk()?)])
    }

    pub fn range(offset: u64) -> std::ops::Range<u64> {
        offset..offset + BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A clock of nanoseconds, and host times in milliseconds.
    fn clock() -> (Clock, impl Fn(u64) -> Instant) {
        let origin = Instant::now();
        (Clock::with_period(1e-9, origin), move |ms| origin + Duration::from_millis(ms))
    }

    fn near(a: Instant, b: Instant) -> bool {
        a.max(b) - a.min(b) < Duration::from_micros(1)
    }

    #[test]
    fn each_submission_moves_the_difference_into_its_bounds() {
        let (clock, at) = clock();
        // The device's clock is 1000 ms ahead of the host's. The device began 3 ms after the submission,
        // which is not known yet.
        let first = clock.stretch([1013 * MS, 1023 * MS], at(10), at(30)).unwrap();
        assert!(near(first.from, at(10)) && near(first.to, at(20)));
        // Here the device began at once, so the difference is exact.
        let second = clock.stretch([1040 * MS, 1050 * MS], at(40), at(55)).unwrap();
        assert!(near(second.from, at(40)) && near(second.to, at(50)));
        // The difference stays, although these bounds are wide.
        let third = clock.stretch([1080 * MS, 1090 * MS], at(60), at(99)).unwrap();
        assert!(near(third.from, at(80)) && near(third.to, at(90)));
    }

    #[test]
    fn clocks_that_drift_never_leave_the_bounds() {
        let (clock, at) = clock();
        // The device's clock is a thousandth too fast for ten minutes.
        for step in 1..60_000 {
            let host = 10 * step;
            let ticks = [0, 5].map(|more| (host + more) * MS + (host + more) * MS / 1000);
            let found = clock.stretch(ticks, at(host), at(host + 6)).unwrap();
            assert!(
                found.from + Duration::from_micros(60) >= at(host)
                    && found.to <= at(host + 6) + Duration::from_micros(60)
            );
        }
    }

    #[test]
    fn a_clock_that_wraps_drops_one_stretch() {
        let (clock, at) = clock();
        let wrap = 1 << 36;
        clock.stretch([wrap - 9 * MS, wrap - 2 * MS], at(10), at(17)).unwrap();
        for _ in 0..2 * MOST_DOUBTS {
            assert_eq!(clock.stretch([wrap - MS, 4 * MS], at(18), at(23)), None);
            let found = clock.stretch([6 * MS, 9 * MS], at(25), at(28)).unwrap();
            assert!(near(found.from, at(25)) && near(found.to, at(28)));
        }
    }

    #[test]
    fn nonsense_turns_it_off_for_good() {
        for ticks in [[0, 0], [0, 5 * MS], [7 * MS, 7 * MS], [9 * MS, 8 * MS], [MS, 99 * MS]] {
            let (clock, at) = clock();
            for _ in 0..MOST_DOUBTS {
                assert!(clock.is_on());
                assert_eq!(clock.stretch(ticks, at(0), at(10)), None, "{ticks:?}");
            }
            assert!(!clock.is_on());
            assert_eq!(clock.stretch([MS, 2 * MS], at(0), at(10)), None);
        }
    }
}
