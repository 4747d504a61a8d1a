//! Who runs which shards: a matter of time, never of what is computed.

use std::ops::Range;

/// How the shards of a batch are given to the replicas; each gets consecutive ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    /// As equal in samples as shards allow.
    #[default]
    Even,
    /// Anew in each step, at random by this seed: for tests, since nothing may show of it.
    Shuffled(u64),
}

/// The shards of each of `workers`, together all of them, an empty range for those that idle. Nobody idles while there
/// are as many shards as workers.
pub(crate) fn assign(how: Assignment, sizes: &[usize], workers: usize, step: u64) -> Vec<Range<usize>> {
    let (shards, busy) = (sizes.len(), workers.min(sizes.len()));
    match how {
        Assignment::Even => {
            let cuts = even_cuts(sizes, busy);
            (0..workers).map(|w| if w < busy { cuts[w]..cuts[w + 1] } else { 0..0 }).collect()
        }
        Assignment::Shuffled(seed) => {
            let mut draw = SplitMix(seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut inner: Vec<usize> = (1..shards).collect();
            draw.shuffle(&mut inner);
            inner.truncate(busy.saturating_sub(1));
            let mut cuts = [vec![0, shards], inner].concat();
            cuts.sort_unstable();
            let mut ranges: Vec<Range<usize>> =
                cuts.windows(2).take(busy).map(|pair| pair[0]..pair[1]).collect();
            ranges.resize(workers, 0..0);
            draw.shuffle(&mut ranges);
            ranges
        }
    }
}

/// Each cut at the boundary of shards nearest to its share of the samples.
fn even_cuts(sizes: &[usize], busy: usize) -> Vec<usize> {
    let mut before = vec![0];
    before.extend(sizes.iter().scan(0, |sum, &size| {
        *sum += size;
        Some(*sum)
    }));
    let (shards, total) = (sizes.len(), before[sizes.len()]);
    let mut cuts = vec![0];
    for w in 1..busy {
        let share = total * w / busy;
        let (least, most) = (cuts[w - 1] + 1, shards - (busy - w));
        let nearest = (least..=most).min_by_key(|&cut| before[cut].abs_diff(share));
        cuts.push(nearest.unwrap_or(least));
    }
    cuts.push(shards);
    cuts
}

/// Steele et al. 2014; only who works draws from it, never what is computed.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
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
            let mut ranges = assign(how, &sizes, workers, step);
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
            let sizes = crate::shards::sizes(batch, shards, batch);
            let loads: Vec<usize> = assign(Assignment::Even, &sizes, workers, 0)
                .into_iter()
                .map(|r| sizes[r].iter().sum())
                .collect();
            let ideal = batch.div_ceil(workers.min(sizes.len()));
            prop_assert!(loads.iter().all(|&load| load <= ideal + batch.div_ceil(shards)), "{:?}", loads);
        }
    }

    #[test]
    fn shuffled_differs_from_step_to_step() {
        let of = |step| assign(Assignment::Shuffled(7), &[1; 8], 3, step);
        assert_eq!(of(1), of(1));
        assert!((2..10).any(|step| of(step) != of(1)));
    }

    #[test]
    fn even_reads_as_expected() {
        assert_eq!(assign(Assignment::Even, &[2; 8], 3, 0), [0..2, 2..5, 5..8]);
        assert_eq!(assign(Assignment::Even, &[2; 2], 3, 0), [0..1, 1..2, 0..0]);
        assert_eq!(assign(Assignment::Even, &[4], 1, 0), vec![0..1]);
    }
}
