//! Cuts a batch into shards, by arithmetic on the global batch and the number of shards alone, never on
//! replicas.

use std::ops::Range;

/// Returns the samples of shard `s` of a full batch: `floor(s*G/S) .. floor((s+1)*G/S)`.
///
/// ```
/// assert_eq!(unisono_replica::shards::bounds(10, 4, 1), 2..5);
/// ```
pub fn bounds(global_batch: usize, shards: usize, s: usize) -> Range<usize> {
    let at = |s: usize| (s as u128 * global_batch as u128 / shards.max(1) as u128) as usize;
    at(s)..at(s + 1)
}

/// Returns the sizes of the non-empty shards of a batch of `samples <= global_batch`. A ragged batch fills
/// the first shards.
///
/// ```
/// assert_eq!(unisono_replica::shards::sizes(10, 4, 10), [2, 3, 2, 3]);
/// assert_eq!(unisono_replica::shards::sizes(10, 4, 6), [2, 3, 1]);
/// ```
pub fn sizes(global_batch: usize, shards: usize, samples: usize) -> Vec<usize> {
    let inside = |s| {
        let Range { start, end } = bounds(global_batch, shards, s);
        end.min(samples).saturating_sub(start)
    };
    (0..shards).map(inside).filter(|&size| size > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shards_follow_each_other_and_cover_the_batch(batch in 1usize..5000, shards in 1usize..70) {
            let all: Vec<_> = (0..shards).map(|s| bounds(batch, shards, s)).collect();
            prop_assert_eq!((all[0].start, all[shards - 1].end), (0, batch));
            prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            let (least, most) = (batch / shards, batch.div_ceil(shards));
            prop_assert!(all.iter().all(|r| (least..=most).contains(&r.len())));
        }

        #[test]
        fn a_ragged_batch_is_the_beginning_of_a_full_one(batch in 1usize..500, shards in 1usize..40, part in 0usize..500) {
            let samples = part % (batch + 1);
            let (full, ragged) = (sizes(batch, shards, batch), sizes(batch, shards, samples));
            prop_assert_eq!(ragged.iter().sum::<usize>(), samples);
            prop_assert!(ragged.iter().all(|&size| size > 0));
            if let Some((last, before)) = ragged.split_last() {
                prop_assert_eq!(before, &full[..before.len()]);
                prop_assert!(*last <= full[before.len()]);
            }
        }
    }
}
