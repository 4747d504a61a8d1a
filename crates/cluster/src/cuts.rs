//! Which rank computes which shards, and what it sends.

use std::ops::Range;

use unisono_graph::tree;

/// How far a cut may move away from the even one, as a part of the mean number of shards of a rank.
const SLACK: f64 = 0.05;

/// Returns the consecutive shards of each rank, in proportion to the weights, such as their numbers of
/// replicas. Cuts move a little where that cuts fewer subtrees of the sum over shards, because a rank sends a
/// vector for each of its maximal subtrees.
///
/// ```
/// assert_eq!(unisono_cluster::cuts(8, &[1, 1]), [0..4, 4..8]);
/// assert_eq!(unisono_cluster::cuts(8, &[1, 3]), [0..2, 2..8]);
/// ```
pub fn cuts(shards: usize, weights: &[usize]) -> Vec<Range<usize>> {
    let all: u128 = weights.iter().map(|&weight| weight as u128).sum::<u128>().max(1);
    let slack = (SLACK * shards as f64 / weights.len().max(1) as f64) as usize;
    let (mut ranges, mut first, mut before) = (Vec::with_capacity(weights.len()), 0, 0);
    for &weight in weights {
        before += weight as u128;
        let even = ((shards as u128 * before + all / 2) / all) as usize;
        let near = even.saturating_sub(slack).max(first)..=(even + slack).min(shards);
        let best = near.max_by_key(|&cut| (alignment(cut, shards), std::cmp::Reverse(cut.abs_diff(even))));
        let end = if before == all { shards } else { best.unwrap_or(even).clamp(first, shards) };
        ranges.push(first..end);
        first = end;
    }
    ranges
}

/// Returns the size of the largest subtree that begins or ends at a cut.
fn alignment(cut: usize, shards: usize) -> u32 {
    if cut == 0 || cut >= shards { u32::MAX } else { cut.trailing_zeros() }
}

/// Returns the bytes that a rank sends to add up a bucket of `len` numbers: a slice of each of its blocks to
/// each other rank, and the sums of its own slice to each other rank.
///
/// `runs` has the shards of each rank, and `me` is the rank's place in it.
pub fn bytes_sent(len: usize, leaves: usize, runs: &[Range<usize>], me: usize) -> u64 {
    let blocks = runs.get(me).map_or(0, |run| tree::blocks(run.clone(), leaves).len()) as u64;
    let own = slice(len, me, runs.len()).len() as u64;
    let others = (runs.len() as u64).saturating_sub(1);
    4 * (blocks * (len as u64 - own) + others * own)
}

/// Returns the slice of a bucket that the rank at a place adds up.
pub(crate) fn slice(len: usize, place: usize, ranks: usize) -> Range<usize> {
    let at = |place: usize| (len as u128 * place as u128 / ranks.max(1) as u128) as usize;
    at(place)..at(place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cuts_follow_each_other_and_cover_all(
            shards in 0usize..3000,
            weights in prop::collection::vec(1usize..9, 1..40),
        ) {
            let ranges = cuts(shards, &weights);
            prop_assert_eq!(ranges.len(), weights.len());
            prop_assert_eq!((ranges[0].start, ranges[weights.len() - 1].end), (0, shards));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let all: usize = weights.iter().sum();
            for (range, weight) in ranges.iter().zip(&weights) {
                let even = shards as f64 * *weight as f64 / all as f64;
                let most = 1.0 + 2.0 * SLACK * shards as f64 / weights.len() as f64;
                prop_assert!((range.len() as f64 - even).abs() <= most, "{range:?} instead of {even}");
            }
        }
    }

    #[test]
    fn a_power_of_two_shards_a_rank_are_one_block() {
        for ranks in [1, 2, 3, 5, 8, 1000] {
            let ranges = cuts(16 * ranks, &vec![1; ranks]);
            assert!(ranges.iter().all(|run| tree::blocks(run.clone(), 16 * ranks).len() == 1), "{ranks}");
        }
    }

    #[test]
    fn two_ranks_send_half_of_a_bucket_twice() {
        assert_eq!(bytes_sent(100, 8, &[0..4, 4..8], 0), 4 * (50 + 50));
        // Shards 0 to 2 are two blocks: 0 to 1, and 2.
        assert_eq!(bytes_sent(100, 8, &[0..3, 3..8], 0), 4 * (2 * 50 + 50));
        assert_eq!(bytes_sent(100, 8, &[0..8, 8..8], 1), 4 * 50);
        assert_eq!(bytes_sent(100, 8, std::slice::from_ref(&(0..8)), 0), 0);
    }
}
