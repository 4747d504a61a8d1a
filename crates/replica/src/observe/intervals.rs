//! What a run that traces keeps of its time: a bounded number of stretches, the oldest summed up.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observe::timeline::{Activity, Interval};

/// The most stretches that are kept.
const MOST: usize = 500_000;

/// The stretches of a run in the order in which they were reported. Where they would be too many, those of
/// the older half of the steps become fewer.
#[derive(Debug)]
pub(crate) struct Intervals {
    all: Vec<Interval>,
    most: usize,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { all: Vec::new(), most: MOST }
    }
}

impl Intervals {
    pub fn push(&mut self, interval: Interval) {
        if self.all.len() >= self.most {
            let median = self.all.get(self.all.len() / 2).map_or(0, |interval| interval.step);
            let (older, newer) = std::mem::take(&mut self.all).into_iter().partition(|i| i.step < median);
            self.all = summed_up(older, self.most / 4);
            self.all.extend::<Vec<_>>(newer);
            // So many replicas that a step alone is too much.
            if self.all.len() >= self.most {
                self.all = summed_up(std::mem::take(&mut self.all), self.most / 2);
                self.all.truncate(self.most / 2);
            }
        }
        self.all.push(interval);
    }

    pub fn all(&self) -> &[Interval] {
        &self.all
    }

    pub fn take(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.all)
    }
}

/// Sums the stretches of steps up to about `most`: those of some steps become one for each replica and
/// activity. They lie one behind the other from where the first began, so that a replica's time is divided
/// as it was. What lies beside a replica's time has a row of its own: a device's work, and a bucket between
/// machines.
fn summed_up(stretches: Vec<Interval>, most: usize) -> Vec<Interval> {
    let Some(first) = stretches.iter().map(|interval| interval.step).min() else { return stretches };
    let end = stretches.iter().map(|interval| interval.step + interval.steps).max().unwrap_or(first + 1);
    let row = |interval: &Interval| {
        let beside = [Activity::Device, Activity::Machines].iter().position(|a| *a == interval.activity);
        (beside.map_or(0, |at| at + 1), interval.replica)
    };
    // An activity of a row is one stretch of each group of steps.
    let kinds = stretches.iter().map(|interval| (row(interval), interval.activity));
    let kinds = kinds.collect::<std::collections::BTreeSet<_>>().len();
    let groups = (most / kinds.max(1)).max(1) as u64;
    let length = (end - first).div_ceil(groups).max(1);
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    for interval in &stretches {
        let key = ((interval.step - first) / length, row(interval));
        let last = interval.step + interval.steps;
        let begun = Group { begin: interval.from, steps: (interval.step, last), sums: BTreeMap::new() };
        let group = groups.entry(key).or_insert(begun);
        group.begin = interval.from.min(group.begin);
        group.steps = (interval.step.min(group.steps.0), last.max(group.steps.1));
        *group.sums.entry(interval.activity).or_default() += interval.to.saturating_sub(interval.from);
    }
    let mut all = Vec::new();
    for ((_, (_, replica)), Group { begin, steps: (step, end), sums }) in groups {
        let mut mark = begin;
        for (activity, time) in sums {
            let (from, to) = (mark, mark + time);
            all.push(Interval { replica, step, steps: end - step, activity, from, to });
            mark = to;
        }
    }
    all
}

/// What becomes of a row of some steps.
struct Group {
    /// The time at which the first stretch began.
    begin: Duration,
    /// The first step and that behind the last one.
    steps: (u64, u64),
    /// The time of each activity.
    sums: BTreeMap<Activity, Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a replica does in a step, in milliseconds from the step's begin.
    const STEP: [(Activity, u64, u64); 5] = [
        (Activity::Upload, 0, 1),
        (Activity::Compute, 1, 5),
        (Activity::Exchange, 5, 6),
        (Activity::Compute, 6, 10),
        (Activity::Device, 2, 9),
    ];

    fn totals(all: &[Interval]) -> BTreeMap<(usize, Activity), (Duration, u64)> {
        let mut totals = BTreeMap::new();
        for interval in all {
            let (time, last) =
                totals.entry((interval.replica, interval.activity)).or_insert((Duration::ZERO, 0));
            *time += interval.to - interval.from;
            *last = interval.step + interval.steps;
        }
        totals
    }

    #[test]
    fn a_long_run_is_summed_up_from_its_begin_and_no_time_is_lost() {
        let (mut bounded, mut whole) = (Intervals { all: vec![], most: 200 }, Vec::new());
        for step in 0..3_000 {
            for replica in 0..2 {
                for (activity, from, to) in STEP {
                    let [from, to] = [from, to].map(|ms| Duration::from_millis(10 * step + ms));
                    let interval = Interval { replica, step, steps: 1, activity, from, to };
                    bounded.push(interval);
                    whole.push(interval);
                    assert!(bounded.all().len() <= 200);
                }
            }
        }
        let kept = bounded.take();
        assert_eq!(totals(&kept), totals(&whole));
        // The newest are as they were, and the oldest are there.
        assert_eq!(kept[kept.len() - 50..], whole[whole.len() - 50..]);
        assert_eq!((kept[0].step, kept[0].from), (0, Duration::ZERO));
        assert!(kept[0].steps > 1);
        // A replica does one thing at a time, in order.
        for replica in 0..2 {
            let own = kept.iter().filter(|i| i.replica == replica && i.activity != Activity::Device);
            let own: Vec<_> = own.collect();
            assert!(own.windows(2).all(|two| two[0].to <= two[1].from), "{own:?}");
        }
        assert!(bounded.all().is_empty());
    }

    #[test]
    fn steps_of_more_stretches_than_are_kept_end_no_run() {
        let mut bounded = Intervals { all: vec![], most: 20 };
        for replica in 0..1_000 {
            let [from, to] = [0, 1].map(Duration::from_millis);
            bounded.push(Interval { replica, step: 7, steps: 1, activity: Activity::Compute, from, to });
            assert!(bounded.all().len() <= 20);
        }
    }
}
