//! The measured pace of a worker.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of past steps of one size that count. Other work of a machine only adds to a step's time, so
/// the second fastest of them is used: disturbed steps change nothing unless four of five are, and a single
/// fast one changes little.
const SEEN: usize = 5;
/// The number of sizes that are remembered.
const SIZES: usize = 4;
/// The weight of the assumption that no samples take no time, beside what was measured at other sizes.
const ORIGIN: f64 = 1.0 / 64.0;
/// The largest part of a step's time that counts as fixed cost, so that a disturbed step does not make a
/// worker idle.
const FIXED: f64 = 0.5;

/// The time that a worker takes for its samples: a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// The seconds of a step however few samples it has: launches, submissions, waits.
    pub fixed: f64,
    /// The seconds for each sample.
    pub sample: f64,
}

impl Cost {
    /// Returns the seconds for so many samples; no samples take no time.
    pub fn seconds(&self, samples: usize) -> f64 {
        if samples == 0 { 0.0 } else { self.fixed + self.sample * samples as f64 }
    }

    /// Returns the mean of several workers; none of no workers.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let of = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        (!all.is_empty()).then(|| Self { fixed: of(|cost| cost.fixed), sample: of(|cost| cost.sample) })
    }
}

/// The times that one worker took with one program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// The sizes; the one that was seen last comes first.
    sizes: VecDeque<Size>,
}

/// Steps with the same number of samples.
#[derive(Clone, Debug)]
struct Size {
    samples: usize,
    seconds: VecDeque<f64>,
}

impl Size {
    fn usual(&self) -> f64 {
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 4).copied().unwrap_or_default()
    }
}

impl Pace {
    /// Notes that a step with so many samples took so long.
    pub fn add(&mut self, samples: usize, spent: Duration) {
        if samples == 0 {
            return;
        }
        let known = self.sizes.iter().position(|size| size.samples == samples);
        let known = known.and_then(|at| self.sizes.remove(at));
        let before = known.as_ref().map(Size::usual);
        let mut size = known.unwrap_or(Size { samples, seconds: VecDeque::new() });
        if size.seconds.len() == SEEN {
            size.seconds.pop_front();
        }
        size.seconds.push_back(spent.as_secs_f64().max(1e-12));
        // A change of speed at one size applies to the other sizes too.
        let change = before.map_or(1.0, |before| size.usual() / before);
        self.sizes.iter_mut().flat_map(|other| &mut other.seconds).for_each(|seconds| *seconds *= change);
        self.sizes.truncate(SIZES - 1);
        self.sizes.push_front(size);
    }

    /// Returns the line through the newest size that fits the other sizes best, where newer ones count more.
    /// Returns `None` before the first step.
    pub fn cost(&self) -> Option<Cost> {
        let newest = self.sizes.front()?;
        let (samples, seconds) = (newest.samples as f64, newest.usual());
        let mut weight = 1.0;
        let (mut rise, mut run) = (ORIGIN * samples * seconds, ORIGIN * samples * samples);
        for other in self.sizes.iter().skip(1) {
            let apart = samples - other.samples as f64;
            rise += weight * apart * (seconds - other.usual());
            run += weight * apart * apart;
            weight *= 0.5;
        }
        let most = seconds / samples;
        let sample = (rise / run).clamp((1.0 - FIXED) * most, most);
        Some(Cost { fixed: seconds - sample * samples, sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(steps: &[(usize, f64)]) -> Pace {
        let mut pace = Pace::default();
        steps.iter().for_each(|&(samples, seconds)| pace.add(samples, Duration::from_secs_f64(seconds)));
        pace
    }

    #[test]
    fn odd_steps_are_passed_over_and_a_change_is_believed_after_four() {
        assert_eq!(seen(&[(0, 9.0)]).cost(), None);
        let mut pace = seen(&[(4, 4.0); 5]);
        for (spent, wanted) in [(40, 1.0), (40, 1.0), (40, 1.0), (40, 10.0), (4, 10.0), (4, 1.0)] {
            pace.add(4, Duration::from_secs(spent));
            assert_eq!(pace.cost(), Some(Cost { fixed: 0.0, sample: wanted }));
        }
    }

    #[test]
    fn two_sizes_tell_what_a_step_costs_without_samples() {
        let cost = seen(&[(16, 2.0 + 16.0), (8, 2.0 + 8.0)]).cost().unwrap();
        assert!((cost.fixed - 2.0).abs() < 0.2 && (cost.sample - 1.0).abs() < 0.02, "{cost:?}");
        assert!((cost.seconds(8) - 10.0).abs() < 1e-9, "what was seen last is met: {cost:?}");
        assert_eq!(cost.seconds(0), 0.0);
    }

    #[test]
    fn sizes_that_are_near_say_little_and_nonsense_says_nothing() {
        // A tenth too slow at 17: no reason to believe that samples cost three times as much as they do.
        let near = seen(&[(16, 16.0), (17, 18.7)]).cost().unwrap();
        assert!(near.fixed < 0.1 * 18.7, "{near:?}");
        // More samples in less time: a disturbance.
        let odd = seen(&[(8, 20.0), (16, 16.0)]).cost().unwrap();
        assert_eq!(odd, Cost { fixed: 8.0, sample: 0.5 });
        // Fewer than no time for no samples.
        assert_eq!(seen(&[(8, 1.0), (16, 16.0)]).cost(), Some(Cost { fixed: 0.0, sample: 1.0 }));
    }

    #[test]
    fn a_worker_that_slows_down_does_so_at_all_sizes() {
        let mut pace = seen(&[(16, 18.0), (8, 10.0), (8, 10.0), (8, 10.0)]);
        let before = pace.cost().unwrap();
        (0..5).for_each(|_| pace.add(8, Duration::from_secs(30)));
        let after = pace.cost().unwrap();
        assert!((after.fixed / before.fixed - 3.0).abs() < 1e-9, "{before:?}, {after:?}");
    }
}
