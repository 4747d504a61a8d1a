//! A step laid out: which replica computes which run of shards, and over how many leaves the sums go.

use std::sync::Arc;

use unisono_graph::Run;

use crate::assign::{Assignment, assign};

/// What one replica does in a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    /// The replica.
    pub replica: usize,
    /// Its shards; none for one that only keeps its state up to date.
    pub run: Arc<Run>,
    /// Its first row of the batch.
    pub first_row: usize,
}

/// What all replicas do in a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// In the order of the replicas.
    pub shares: Vec<Share>,
    /// Non-empty shards of the batch.
    pub shards: usize,
    /// Leaves of the sums over shards: `shards`, or one more where that one is a zero.
    pub leaves: usize,
}

impl Layout {
    /// Lays a step out.
    ///
    /// A replica without shards takes part if the step changes the state (`everyone`). Where others take part, the one
    /// that happens to hold all shards must give its sums away: it gets a run that is not whole, beside a shard that
    /// nobody has. A missing shard and a shard of zeros are the same, so no bit changes.
    pub fn new(how: Assignment, sizes: &[usize], replicas: &[usize], step: u64, everyone: bool) -> Self {
        let ranges = assign(how, sizes, replicas.len(), step);
        let taking_part = |empty: bool| everyone || !empty;
        let several = ranges.iter().filter(|r| taking_part(r.is_empty())).count() > 1;
        let one_has_all = ranges.iter().any(|r| r.len() == sizes.len());
        let leaves = sizes.len() + usize::from(several && one_has_all);
        let share = |(range, &replica): (std::ops::Range<usize>, &usize)| {
            let first = if range.is_empty() { 0 } else { range.start };
            let run = Run { first, sizes: sizes[range].to_vec(), shards: leaves };
            Share { replica, run: Arc::new(run), first_row: sizes[..first].iter().sum() }
        };
        let shares =
            ranges.into_iter().zip(replicas).filter(|(r, _)| taking_part(r.is_empty())).map(share).collect();
        Self { shares, shards: sizes.len(), leaves }
    }

    /// All shards on one replica, which nevertheless gives its sums away: to look at them.
    pub fn exposed(sizes: &[usize], replica: usize) -> Self {
        let leaves = sizes.len() + 1;
        let run = Run { first: 0, sizes: sizes.to_vec(), shards: leaves };
        Self {
            shares: vec![Share { replica, run: Arc::new(run), first_row: 0 }],
            shards: sizes.len(),
            leaves,
        }
    }

    /// One replica has everything: sums stay on its device.
    pub fn is_whole(&self) -> bool {
        matches!(&self.shares[..], [share] if share.run.is_whole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unisono_graph::tree;

    proptest! {
        /// Whoever has which shards: the blocks of all runs add up to the sum over all shards, to the bit.
        #[test]
        fn the_blocks_of_any_layout_cover_the_sum(
            values in prop::collection::vec(-1e3f32..1e3, 1..40),
            workers in 1usize..9,
            seed in proptest::option::of(any::<u64>()),
            everyone: bool,
        ) {
            let sizes = vec![1; values.len()];
            let how = seed.map_or(Assignment::Even, Assignment::Shuffled);
            let replicas: Vec<usize> = (0..workers).collect();
            let layout = Layout::new(how, &sizes, &replicas, 3, everyone);
            let with_shards = workers.min(values.len());
            prop_assert_eq!(layout.shares.len(), if everyone { workers } else { with_shards });
            prop_assert_eq!(layout.is_whole(), layout.shares.len() == 1);
            let held: Vec<_> = layout
                .shares
                .iter()
                .flat_map(|share| share.run.blocks())
                .map(|b| (b.clone(), vec![tree::sum(&values[b])]))
                .collect();
            let zero = [0.0];
            let find = |r: &std::ops::Range<usize>| {
                let block = held.iter().find(|(b, _)| b == r).map(|(_, v)| v.as_slice());
                block.or((r.start >= layout.shards).then_some(&zero[..]))
            };
            let mut total = Vec::new();
            prop_assert!(tree::sum_blocks(layout.leaves, &find, &mut total).is_some());
            prop_assert_eq!(total[0].to_bits(), tree::sum(&values).to_bits());
        }
    }

    #[test]
    fn rows_follow_the_shards() {
        let layout = Layout::new(Assignment::Even, &[2, 3, 2, 3], &[4, 6], 0, true);
        let rows: Vec<_> = layout.shares.iter().map(|s| (s.replica, s.first_row, s.run.rows())).collect();
        assert_eq!(rows, [(4, 0, 5), (6, 5, 5)]);
    }

    #[test]
    fn a_step_without_updates_needs_no_idle_replica() {
        let alone = Layout::new(Assignment::Even, &[2], &[0, 1], 0, false);
        assert!(alone.is_whole());
        let both = Layout::new(Assignment::Even, &[2], &[0, 1], 0, true);
        assert_eq!((both.is_whole(), both.shards, both.leaves), (false, 1, 2));
        assert_eq!(both.shares[1].run.rows(), 0);
    }
}
