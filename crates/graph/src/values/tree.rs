//! The order of every sum.
//!
//! A sum over a logical index is cut into chunks of a constant length; inside a chunk it is serial; across
//! chunks it is this binary tree: a range `[lo, hi)` splits after the largest power of two smaller than its
//! length.
//!
//! ```text
//!   7 leaves:         +
//!                 /       \
//!              +             +
//!            /   \         /   \
//!           +     +       +     6
//!          / \   / \     / \
//!         0   1 2   3   4   5
//! ```
//!
//! Two facts follow, on which everything else relies. The tree of n leaves is what pairing neighbours level
//! by level gives, so every aligned block of 2^j leaves is a subtree: any device or host may sum a
//! block. And leaves of +0 at the end change nothing, because sums turn -0 and all other numbers of magnitude
//! 2^-126 or less into +0 ([`add`]): a missing shard and a shard of zeros are the same.

use std::collections::TryReserveError;
use std::ops::Range;

/// The number of elements that are added serially inside a chunk of a sum over an axis.
pub const SUM_CHUNK: usize = 256;
/// The number of elements that are added serially inside a chunk of a matrix product's inner axis.
pub const PRODUCT_CHUNK: usize = 1024;

/// Returns +0 for a number of magnitude 2^-126 or less, and any other number as it is. Those numbers are
/// zeros, subnormal numbers and the smallest normal one, to which drivers round from below or not.
#[inline]
pub fn canonical(x: f32) -> f32 {
    if x.to_bits() & 0x7fff_ffff <= 0x0080_0000 { 0.0 } else { x }
}

/// Returns little-endian f32 as a state holds them: each is [`canonical`]. Kernels rely on it, since states
/// are either written by the host or results of ops.
///
/// # Errors
/// There is no memory for them.
pub fn canonical_bytes(bytes: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes.len())?;
    own.extend_from_slice(bytes);
    let mut bytes = own;
    for word in bytes.as_chunks_mut::<4>().0 {
        *word = canonical(f32::from_le_bytes(*word)).to_le_bytes();
    }
    Ok(bytes)
}

/// Returns the sum of two numbers as every sum here adds them: operands and result are made canonical
/// ([`canonical`]).
#[inline]
pub fn add(a: f32, b: f32) -> f32 {
    canonical(canonical(a) + canonical(b))
}

/// Returns the sum of `leaves` in the order of the tree, 0 if there are none.
pub fn sum(leaves: &[f32]) -> f32 {
    match leaves.len() {
        0 => 0.0,
        1 => canonical(leaves[0]),
        n => {
            let (left, right) = leaves.split_at(split(n));
            add(sum(left), sum(right))
        }
    }
}

/// Returns where a range of `n` >= 2 leaves splits: the largest power of two smaller than `n`.
pub fn split(n: usize) -> usize {
    debug_assert!(n >= 2);
    1 << (n - 1).ilog2()
}

/// Returns the maximal subtrees of the tree over `leaves` that lie in `run`: what the holder of the run may
/// sum alone.
///
/// They are in order, and at most `2 log2(leaves)` of them.
pub fn blocks(run: Range<usize>, leaves: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    collect_blocks(0..leaves, &run, &mut found);
    found
}

fn collect_blocks(node: Range<usize>, run: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if node.is_empty() || node.end <= run.start || run.end <= node.start {
        return;
    }
    if run.start <= node.start && node.end <= run.end {
        found.push(node);
        return;
    }
    let middle = node.start + split(node.len());
    collect_blocks(node.start..middle, run, found);
    collect_blocks(middle..node.end, run, found);
}

/// Sums vectors elementwise over subtrees. `block(range)` returns the vector of the subtree over `range` if
/// it was summed.
///
/// Returns `None` when the blocks at hand do not cover `0..leaves` or are not as long as `into`, which
/// receives the result.
pub fn sum_blocks<'a>(
    leaves: usize,
    block: &dyn Fn(&Range<usize>) -> Option<&'a [f32]>,
    into: &mut [f32],
) -> Option<()> {
    sum_node(0..leaves, block, into)
}

fn sum_node<'a>(
    node: Range<usize>,
    block: &dyn Fn(&Range<usize>) -> Option<&'a [f32]>,
    into: &mut [f32],
) -> Option<()> {
    if let Some(values) = block(&node) {
        return combine(into, values, |_, value| canonical(value));
    }
    if node.len() < 2 {
        return None;
    }
    let middle = node.start + split(node.len());
    let (left, right) = (node.start..middle, middle..node.end);
    if let (Some(a), Some(b)) = (block(&left), block(&right)) {
        // With two replicas most sums are of two blocks: add them in one pass.
        let fits = a.len() == into.len() && b.len() == into.len();
        return fits
            .then(|| into.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (&a, &b))| *sum = add(a, b)));
    }
    sum_node(left, block, into)?;
    if let Some(values) = block(&right) {
        return combine(into, values, add);
    }
    let mut sums = vec![0.0; into.len()];
    sum_node(right, block, &mut sums)?;
    combine(into, &sums, add)
}

fn combine(into: &mut [f32], values: &[f32], how: impl Fn(f32, f32) -> f32) -> Option<()> {
    (into.len() == values.len())
        .then(|| into.iter_mut().zip(values).for_each(|(sum, &value)| *sum = how(*sum, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pairs neighbours level by level and carries an odd one up, which is another description of the same
    /// tree.
    fn by_levels(mut level: Vec<f32>) -> f32 {
        level.iter_mut().for_each(|x| *x = canonical(*x));
        while level.len() > 1 {
            level = level.chunks(2).map(|p| if p.len() == 2 { add(p[0], p[1]) } else { p[0] }).collect();
        }
        level.first().copied().unwrap_or(0.0)
    }

    proptest! {
        #[test]
        fn the_tree_is_pairing_by_levels(x in prop::collection::vec(-1e3f32..1e3, 0..70)) {
            prop_assert_eq!(sum(&x).to_bits(), by_levels(x).to_bits());
        }

        #[test]
        fn zeros_at_the_end_change_nothing(x in prop::collection::vec(-1e3f32..1e3, 0..70), zeros in 0usize..70) {
            let mut padded = x.clone();
            padded.resize(x.len() + zeros, 0.0);
            prop_assert_eq!(sum(&x).to_bits(), sum(&padded).to_bits());
        }

        #[test]
        fn any_cut_into_runs_gives_the_same_sum(
            x in prop::collection::vec(-1e3f32..1e3, 1..40),
            cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % x.len()).chain([0, x.len()]).collect();
            cuts.sort_unstable();
            let mut held: Vec<(Range<usize>, Vec<f32>)> = Vec::new();
            for pair in cuts.windows(2) {
                for b in blocks(pair[0]..pair[1], x.len()) {
                    held.push((b.clone(), vec![sum(&x[b])]));
                }
            }
            let find = |r: &Range<usize>| held.iter().find(|(b, _)| b == r).map(|(_, v)| v.as_slice());
            let mut total = [0.0];
            prop_assert!(sum_blocks(x.len(), &find, &mut total).is_some());
            prop_assert_eq!(total[0].to_bits(), sum(&x).to_bits());
        }
    }

    #[test]
    fn a_missing_block_is_noticed() {
        let (held, values) = (0..2, [1.0f32]);
        let find = |r: &Range<usize>| (*r == held).then_some(values.as_slice());
        assert_eq!(sum_blocks(3, &find, &mut [0.0]), None);
        assert_eq!(sum_blocks(2, &find, &mut [0.0]), Some(()));
        assert_eq!(sum_blocks(2, &find, &mut [0.0; 2]), None);
    }

    #[test]
    fn states_are_canonical_from_the_start() {
        let given = [-0.0, f32::MIN_POSITIVE, -1e-40, 1.5, f32::INFINITY];
        let bytes: Vec<u8> = given.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        let found: Vec<u32> =
            canonical_bytes(&bytes).unwrap().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        assert_eq!(found, [0.0, 0.0, 0.0, 1.5, f32::INFINITY].map(f32::to_bits));
    }

    #[test]
    fn zeros_are_canonical() {
        assert_eq!(add(-0.0, -0.0).to_bits(), 0);
        assert_eq!(add(1e-40, 1e-40).to_bits(), 0);
        assert_eq!(sum(&[-0.0]).to_bits(), 0);
        assert_eq!(canonical(-f32::MIN_POSITIVE).to_bits(), 0);
        let next = f32::from_bits(f32::MIN_POSITIVE.to_bits() + 1);
        assert_eq!(canonical(-next), -next);
    }
}
