//! What must hold of the sums of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unisono_graph::tree;

use super::simulation::Step;

pub(super) type Checked<T> = Result<T, String>;

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks that every cut was summed on the host, unless one worker ran all shards at once and has their sums.
pub(super) fn all_summed(
    wanted: &Step,
    kept: &BTreeMap<usize, Vec<Range<usize>>>,
    summed: &BTreeSet<usize>,
) -> Checked<()> {
    let all = 0..wanted.job.sizes.len();
    let is_summed = |cut: &usize| {
        let groups = kept.get(cut).map_or(&[][..], Vec::as_slice);
        summed.contains(cut) || groups == std::slice::from_ref(&all)
    };
    let missing = (0..wanted.job.segments - 1).find(|cut| !is_summed(cut));
    ensure(missing.is_none(), || format!("cut {missing:?} is not summed: {kept:?}"))
}

/// Checks that the blocks of all groups add up to the sum over all shards, to the bit, whatever the groups.
pub(super) fn same_sum(groups: &[Range<usize>], shards: usize, leaves: usize) -> Checked<()> {
    let values: Vec<f32> = (0..shards).map(|s| (s as f32 * 1.7).sin() * 1e3).collect();
    let blocks = groups.iter().flat_map(|group| tree::blocks(group.clone(), leaves));
    let held: Vec<_> = blocks.map(|block| (block.clone(), vec![tree::sum(&values[block])])).collect();
    let zero = [0.0];
    let find = |range: &Range<usize>| {
        let block = held.iter().find(|(block, _)| block == range).map(|(_, value)| value.as_slice());
        block.or((range.start >= shards).then_some(&zero[..]))
    };
    let mut total = [0.0];
    let all = tree::sum_blocks(leaves, &find, &mut total).is_some();
    let same = all && total[0].to_bits() == tree::sum(&values).to_bits();
    ensure(same, || format!("{groups:?} of {shards} in {leaves} leaves do not add up"))
}

/// Checks that every shard is there once.
pub(super) fn covers(groups: &[Range<usize>], shards: usize) -> Checked<()> {
    let all: Vec<usize> = groups.iter().cloned().flatten().collect();
    let once: BTreeSet<usize> = all.iter().copied().collect();
    ensure(once.len() == all.len() && all.len() == shards, || format!("{groups:?} of {shards} shards"))
}
