//! Assigns shards to workers. The assignment decides how long a step takes, and never what it computes.

use std::ops::Range;

use unisono_graph::tree;

use super::pace::Cost;

/// How the shards of a batch are assigned to replicas. Each replica gets consecutive shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    /// By each replica's measured speed, such that all are done at about the same time; evenly until the
    /// speeds are known.
    #[default]
    Speed,
    /// As equal in samples as shards allow, whatever the speeds.
    Even,
    /// At random in each step, by this seed. It is meant for tests, which show that results do not depend on
    /// it.
    Shuffled(u64),
}

/// The time of new cuts relative to those in use from which they replace them: new cuts have plans to load.
const BETTER: f64 = 0.95;
/// The time of cuts relative to the best ones up to which they are taken if they cut fewer subtrees.
const NEAR: f64 = 1.03;
/// The seconds that new cuts must also save in each step. In a few hundred steps this makes up for loading a
/// plan.
const WORTH: f64 = 250e-6;
/// The interval in steps at which a worker that is too slow for one shard is tried again, and the number of
/// steps for which it is tried.
const TRY_AGAIN: (u64, u64) = (64, 3);

/// Returns the shards of each worker, with an empty range for workers that idle. `costs` has the cost of each
/// worker where it is known, `most` the most shards of each (together at least all), and `before` the last
/// assignment of these shards to the same workers.
///
/// No worker idles while there are as many shards as workers, except for slow ones with
/// [`Assignment::Speed`].
pub(crate) fn assign(
    how: Assignment,
    sizes: &[usize],
    costs: &[Option<Cost>],
    most: &[usize],
    before: Option<&Vec<Range<usize>>>,
    step: u64,
) -> Vec<Range<usize>> {
    let known: Vec<Cost> = costs.iter().copied().flatten().collect();
    let ranges = match (how, Cost::mean(&known)) {
        (Assignment::Speed, Some(mean)) if costs.len() > 1 => {
            let costs: Vec<Cost> = costs.iter().map(|cost| cost.unwrap_or(mean)).collect();
            by_speed(sizes, &costs, most, before, step)
        }
        (Assignment::Speed | Assignment::Even, _) => even(sizes, costs.len()),
        (Assignment::Shuffled(seed), _) => shuffled(sizes.len(), costs.len(), seed, step),
    };
    if ranges.iter().zip(most).all(|(range, &most)| range.len() <= most) {
        return ranges;
    }
    by_cost(sizes, &vec![Cost { fixed: 0.0, sample: 1.0 }; costs.len()], 0, most)
}

/// Returns the fastest assignment by the costs, or the one in use where that is nearly as fast.
fn by_speed(
    sizes: &[usize],
    costs: &[Cost],
    most: &[usize],
    before: Option<&Vec<Range<usize>>>,
    step: u64,
) -> Vec<Range<usize>> {
    let all = step % TRY_AGAIN.0 < TRY_AGAIN.1 && sizes.len() >= costs.len();
    let best = aligned(sizes, costs, most, by_cost(sizes, costs, usize::from(all), most));
    let worth = |before: &Vec<Range<usize>>| {
        let (now, then) = (slowest(sizes, costs, before), slowest(sizes, costs, &best));
        then < BETTER * now && now - then > WORTH || all && before.iter().any(Range::is_empty)
    };
    match before {
        Some(before) if !worth(before) => before.clone(),
        _ => best,
    }
}

fn shuffled(shards: usize, workers: usize, seed: u64, step: u64) -> Vec<Range<usize>> {
    let busy = workers.min(shards);
    let mut draw = SplitMix(seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut inner: Vec<usize> = (1..shards).collect();
    draw.shuffle(&mut inner);
    inner.truncate(busy.saturating_sub(1));
    let mut cuts = [vec![0, shards], inner].concat();
    cuts.sort_unstable();
    let mut ranges: Vec<Range<usize>> = cuts.windows(2).take(busy).map(|pair| pair[0]..pair[1]).collect();
    ranges.resize(workers, 0..0);
    draw.shuffle(&mut ranges);
    ranges
}

/// Returns the seconds until the last worker is done.
fn slowest(sizes: &[usize], costs: &[Cost], ranges: &[Range<usize>]) -> f64 {
    let seconds = |(range, cost): (&Range<usize>, &Cost)| cost.seconds(sizes[range.clone()].iter().sum());
    ranges.iter().zip(costs).map(seconds).fold(0.0, f64::max)
}

/// Returns consecutive shards for each worker such that the last one is done as early as possible: it
/// searches the least time in which the workers, each taking as many shards as it can, take all. Each takes
/// at least `least` and at most its `most`.
fn by_cost(sizes: &[usize], costs: &[Cost], least: usize, most: &[usize]) -> Vec<Range<usize>> {
    let shards = sizes.len();
    let within = |seconds: f64| {
        let mut at = 0;
        let take = |(w, cost): (usize, &Cost)| {
            let (first, behind) = (at, least * (costs.len() - 1 - w));
            let mut rows = 0;
            while at + behind < shards && at - first < most[w] {
                rows += sizes[at];
                if at - first >= least && cost.seconds(rows) > seconds {
                    break;
                }
                at += 1;
            }
            if at == first { 0..0 } else { first..at }
        };
        let ranges: Vec<Range<usize>> = costs.iter().enumerate().map(take).collect();
        (at == shards).then_some(ranges)
    };
    let rows = sizes.iter().sum();
    let (mut short, mut enough) = (0.0, costs.iter().map(|cost| cost.seconds(rows)).fold(0.0, f64::max));
    let mut best = within(enough);
    // So many halvings leave less than the error of any measurement.
    for _ in 0..40 {
        let middle = 0.5 * (short + enough);
        match within(middle) {
            Some(ranges) => (best, enough) = (Some(ranges), middle),
            None => short = middle,
        }
    }
    // In the time with which the search begins, even the slowest worker alone would run all shards.
    best.unwrap_or_else(|| std::iter::once(0..shards).chain(costs.iter().skip(1).map(|_| 0..0)).collect())
}

/// Moves each cut to where it cuts the fewest subtrees, as far as no worker gets more than its `most` or is
/// done much later than the last one is anyway. Each block of a run is a sum of its own that is computed,
/// fetched and added.
fn aligned(
    sizes: &[usize],
    costs: &[Cost],
    most: &[usize],
    mut ranges: Vec<Range<usize>>,
) -> Vec<Range<usize>> {
    let enough = NEAR * slowest(sizes, costs, &ranges);
    let busy: Vec<usize> = (0..ranges.len()).filter(|&w| !ranges[w].is_empty()).collect();
    for pair in busy.windows(2) {
        let (left, right) = (pair[0], pair[1]);
        let (first, end, before) = (ranges[left].start, ranges[right].end, ranges[left].end);
        let fits = |worker: usize, range: Range<usize>| {
            range.len() <= most[worker] && costs[worker].seconds(sizes[range].iter().sum()) <= enough
        };
        let blocks = |run| tree::blocks(run, sizes.len()).len();
        let cut = (first + 1..end)
            .filter(|&cut| fits(left, first..cut) && fits(right, cut..end))
            .min_by_key(|&cut| (blocks(first..cut) + blocks(cut..end), cut.abs_diff(before)));
        let cut = cut.unwrap_or(before);
        (ranges[left], ranges[right]) = (first..cut, cut..end);
    }
    ranges
}

/// Returns an even assignment: each cut is at the boundary of shards nearest to its share of the samples.
fn even(sizes: &[usize], workers: usize) -> Vec<Range<usize>> {
    let mut before = vec![0];
    before.extend(sizes.iter().scan(0, |sum, &size| {
        *sum += size;
        Some(*sum)
    }));
    let (shards, busy, total) = (sizes.len(), workers.min(sizes.len()), before[sizes.len()]);
    let mut cuts = vec![0];
    for w in 1..busy {
        let share = total * w / busy;
        let (least, most) = (cuts[w - 1] + 1, shards - (busy - w));
        let nearest = (least..=most).min_by_key(|&cut| before[cut].abs_diff(share));
        cuts.push(nearest.unwrap_or(least));
    }
    cuts.push(shards);
    (0..workers).map(|w| if w < busy { cuts[w]..cuts[w + 1] } else { 0..0 }).collect()
}

/// The generator SplitMix64 (Steele et al. 2014). Only assignments draw from it, never what is computed.
pub(super) struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_shard_has_one_worker_and_nobody_idles_without_need(
            sizes in prop::collection::vec(1usize..9, 1..40),
            workers in 1usize..12,
            seed in proptest::option::of(any::<u64>()),
            step in any::<u64>(),
        ) {
            let how = seed.map_or(Assignment::Even, Assignment::Shuffled);
            let mut ranges = assign(how, &sizes, &vec![None; workers], &vec![usize::MAX; workers], None, step);
            prop_assert_eq!(ranges.len(), workers);
            let busy = ranges.iter().filter(|r| !r.is_empty()).count();
            prop_assert_eq!(busy, workers.min(sizes.len()));
            ranges.retain(|r| !r.is_empty());
            ranges.sort_by_key(|r| r.start);
            let shards: Vec<usize> = ranges.into_iter().flatten().collect();
            prop_assert_eq!(shards, (0..sizes.len()).collect::<Vec<_>>());
        }

        #[test]
        fn even_is_even(batch in 1usize..300, shards in 1usize..40, workers in 1usize..9) {
            let sizes = crate::batch::shards::sizes(batch, shards, batch);
            let loads: Vec<usize> = assign(Assignment::Even, &sizes, &vec![None; workers], &vec![usize::MAX; workers], None, 0)
                .into_iter()
                .map(|r| sizes[r].iter().sum())
                .collect();
            let ideal = batch.div_ceil(workers.min(sizes.len()));
            prop_assert!(loads.iter().all(|&load| load <= ideal + batch.div_ceil(shards)), "{:?}", loads);
        }
    }

    #[test]
    fn shuffled_differs_from_step_to_step() {
        let of = |step| assign(Assignment::Shuffled(7), &[1; 8], &[None; 3], &[8; 3], None, step);
        assert_eq!(of(1), of(1));
        assert!((2..10).any(|step| of(step) != of(1)));
    }

    #[test]
    fn even_reads_as_expected() {
        let even = |sizes: &[usize], workers| {
            assign(Assignment::Even, sizes, &vec![None; workers], &vec![usize::MAX; workers], None, 0)
        };
        assert_eq!(even(&[2; 8], 3), [0..2, 2..5, 5..8]);
        assert_eq!(even(&[2; 2], 3), [0..1, 1..2, 0..0]);
        assert_eq!(even(&[4], 1), vec![0..1]);
    }

    /// The least time over all ways to give consecutive shards to workers in their order, by trying them all.
    fn best_time(sizes: &[usize], costs: &[Cost]) -> f64 {
        let Some((cost, others)) = costs.split_last() else {
            return if sizes.is_empty() { 0.0 } else { f64::INFINITY };
        };
        let own = |cut: usize| cost.seconds(sizes[cut..].iter().sum());
        (0..=sizes.len())
            .map(|cut| best_time(&sizes[..cut], others).max(own(cut)))
            .fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn nothing_is_faster_than_speed(
            sizes in prop::collection::vec(1usize..4, 1..9),
            costs in prop::collection::vec((0.0f64..4.0, 0.1f64..3.0), 2..5),
        ) {
            let costs: Vec<Cost> = costs.into_iter().map(|(fixed, sample)| Cost { fixed, sample }).collect();
            let known: Vec<Option<Cost>> = costs.iter().copied().map(Some).collect();
            let ranges = assign(Assignment::Speed, &sizes, &known, &vec![usize::MAX; known.len()], None, 10);
            let shards: Vec<usize> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(shards, (0..sizes.len()).collect::<Vec<_>>());
            prop_assert!(slowest(&sizes, &costs, &ranges) <= best_time(&sizes, &costs) * (NEAR + 1e-6));
        }
    }

    #[test]
    fn speed_is_even_at_first_stays_where_little_would_be_won_and_forgets_nobody() {
        let speed = |samples: &[Option<f64>], before: Option<&Vec<Range<usize>>>, step| {
            let cost = |sample: &Option<f64>| sample.map(|sample| Cost { fixed: 0.0, sample });
            let costs: Vec<Option<Cost>> = samples.iter().map(cost).collect();
            assign(Assignment::Speed, &[1; 32], &costs, &[32; 2], before, step)
        };
        assert_eq!(speed(&[None; 2], None, 5), [0..16, 16..32]);
        assert_eq!(speed(&[Some(1.0), Some(3.0)], None, 5), [0..24, 24..32]);
        assert_eq!(speed(&[None, Some(3.0)], None, 5), [0..16, 16..32]);
        let before = vec![0..23, 23..32];
        assert_eq!(speed(&[Some(1.0), Some(2.6)], Some(&before), 5), before);
        let starved = speed(&[Some(1.0), Some(99.0)], None, 5);
        assert_eq!(starved, [0..32, 0..0]);
        assert_eq!(speed(&[Some(1.0), Some(99.0)], Some(&starved), 64), [0..31, 31..32]);
        assert_eq!(speed(&[Some(1.0), Some(99.0)], Some(&vec![0..31, 31..32]), 67), starved);
    }

    #[test]
    fn nobody_has_more_than_it_has_room_for() {
        let costs = [1.0, 3.0, 3.0].map(|sample| Some(Cost { fixed: 0.0, sample }));
        let with = |how, most: &[usize]| assign(how, &[1; 16], &costs, most, None, 5);
        assert_eq!(with(Assignment::Speed, &[16; 3]), [0..10, 10..13, 13..16]);
        assert_eq!(with(Assignment::Speed, &[6, 16, 16]), [0..6, 6..11, 11..16]);
        assert_eq!(with(Assignment::Even, &[16, 4, 16]), [0..6, 6..10, 10..16]);
    }

    #[test]
    fn cuts_between_subtrees_are_worth_a_little_time() {
        let speed = |slower: f64| {
            let costs = [1.0, slower].map(|sample| Some(Cost { fixed: 0.0, sample }));
            assign(Assignment::Speed, &[1; 32], &costs, &[32; 2], None, 5)
        };
        // 24 + 8 are three blocks, 25 + 7 six; 24 + 8 take 24.72 where 25 + 7 would take 25.
        assert_eq!([speed(2.9), speed(3.0), speed(3.2)], [[0..24, 24..32], [0..24, 24..32], [0..24, 24..32]]);
        assert_ne!(speed(4.0), [0..24, 24..32]);
    }

    #[test]
    fn what_a_step_costs_at_least_is_not_taken_for_slowness() {
        let costs = [Cost { fixed: 4.0, sample: 1.0 }, Cost { fixed: 12.0, sample: 3.0 }].map(Some);
        // 4 + 26 seconds against 12 + 18; without the fixed cost it would be 24 and 8: 28 against 36.
        assert_eq!(assign(Assignment::Speed, &[1; 32], &costs, &[32; 2], None, 5), [0..26, 26..32]);
    }
}
