//! The sum over shards on the host, in the order of the tree: it is the same whichever replica summed which
//! block, and however many threads add.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use unisono_gpu::{UploadPart, on_threads};
use unisono_graph::{NodeId, Program, tree};

/// The number of elements that are summed at once: they fit the nearest cache together with the tree.
const CHUNK: usize = 4096;
/// The number of elements that are worth a thread of their own.
const THREAD: usize = 1 << 18;

/// The blocks of a bucket by the first and the end of the shards that they sum, each of the bucket's length.
pub(crate) type Blocks<'a> = BTreeMap<(usize, usize), &'a [f32]>;

/// Sums a bucket into `sums` and into `places`, which have its length. Returns whether all sums are finite,
/// and none if a block is missing. Leaves from `shards` on are zeros.
pub(crate) fn sum(
    blocks: &Blocks<'_>,
    shards: usize,
    leaves: usize,
    threads: usize,
    sums: &mut [f32],
    places: Vec<UploadPart<'_>>,
) -> Option<bool> {
    sum_with(&Builder::new, (blocks, shards, leaves), threads, sums, places)
}

fn sum_with(
    builder: &dyn Fn() -> Builder,
    (blocks, shards, leaves): (&Blocks<'_>, usize, usize),
    threads: usize,
    sums: &mut [f32],
    mut places: Vec<UploadPart<'_>>,
) -> Option<bool> {
    let threads = threads.min(sums.len().div_ceil(THREAD)).max(1);
    let part = sums.len().div_ceil(threads).max(1).next_multiple_of(CHUNK);
    let parts = sums.chunks_mut(part).enumerate().map(|(i, sums)| {
        let places: Vec<_> = places.iter_mut().map(|place| place.split_off(size_of_val(sums))).collect();
        (i * part, sums, places)
    });
    // Threads take their parts from here, so that none is missing if the system gives fewer threads.
    let parts = Mutex::new(parts.collect::<Vec<_>>().into_iter());
    let work = || {
        let mut finite = true;
        loop {
            let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((first, sums, places)) = next else { return Some(finite) };
            finite &= sum_part(blocks, shards, leaves, first, sums, places)?;
        }
    };
    let done = on_threads(threads, builder, &work);
    done.into_iter().try_fold(true, |all, finite| Some(all & finite.flatten()?))
}

/// Sums the elements from `first` on, as many as `sums` and each of `places` have.
fn sum_part(
    blocks: &Blocks<'_>,
    shards: usize,
    leaves: usize,
    first: usize,
    sums: &mut [f32],
    mut places: Vec<UploadPart<'_>>,
) -> Option<bool> {
    let zeros = [0.0; CHUNK];
    let mut finite = true;
    for (i, chunk) in sums.chunks_mut(CHUNK).enumerate() {
        let elements = first + i * CHUNK..first + i * CHUNK + chunk.len();
        let block = |range: &Range<usize>| match blocks.get(&(range.start, range.end)) {
            Some(block) => block.get(elements.clone()),
            None => (range.start >= shards).then_some(&zeros[..elements.len()]),
        };
        tree::sum_blocks(leaves, &block, chunk)?;
        // The loop has no early exit, so that the compiler can vectorize it.
        finite &= chunk.iter().fold(true, |finite, &sum| finite & is_finite(sum));
        places.iter_mut().for_each(|place| place.write(bytemuck::cast_slice(chunk)));
    }
    Some(finite)
}

/// Returns those of a bucket's sums that are not finite: their nodes, which are in the order of the step, and
/// their names.
pub(crate) fn not_finite(program: &Program, bucket: usize, sums: &[f32]) -> Vec<(NodeId, String)> {
    let bad = |&&(node, first): &&(NodeId, usize)| {
        let count = program.graph().nodes[node].ty.count();
        sums.iter().skip(first).take(count).any(|x| !is_finite(*x))
    };
    let values = program.buckets()[bucket].values.iter().filter(bad);
    values.map(|&(node, first)| (node, name(program, bucket, first))).collect()
}

/// Returns whether a number is finite, by its bits, as on the device.
fn is_finite(x: f32) -> bool {
    x.to_bits() & 0x7f80_0000 != 0x7f80_0000
}

/// Returns the name of a sum: that of the output, if the sum is one.
fn name(program: &Program, bucket: usize, first: usize) -> String {
    let shown = program.outputs().iter().find(|output| output.sum == Some((bucket, first)));
    shown.map_or_else(|| program.describe_sum(bucket, first), |output| format!("the output {}", output.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_chunks_do_not_show() {
        let len = 3 * THREAD + 17;
        let shard = |s: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * 31 + s * 7919) % 1013) as f32 * 1e-3 - 0.4).collect()
        };
        let shards: Vec<Vec<f32>> = (0..3).map(shard).collect();
        let blocks: Blocks<'_> = shards.iter().enumerate().map(|(s, v)| ((s, s + 1), v.as_slice())).collect();
        let mut one = vec![0.0; len];
        assert_eq!(sum(&blocks, 3, 3, 1, &mut one, Vec::new()), Some(true));
        for threads in [2, 3, 8] {
            let mut several = vec![0.0; len];
            assert_eq!(sum(&blocks, 3, 3, threads, &mut several, Vec::new()), Some(true));
            assert_eq!(one, several);
        }
        // The system gives no threads, since no memory is enough for their stacks.
        let none = || Builder::new().stack_size(usize::MAX / 2);
        let mut alone = vec![0.0; len];
        assert_eq!(sum_with(&none, (&blocks, 3, 3), 8, &mut alone, Vec::new()), Some(true));
        assert_eq!(one, alone);
        let mut padded = vec![0.0; len];
        assert_eq!(sum(&blocks, 3, 4, 2, &mut padded, Vec::new()), Some(true));
        assert_eq!(one, padded);
        assert_eq!(one[5], tree::sum(&[shards[0][5], shards[1][5], shards[2][5]]));
    }

    #[test]
    fn a_missing_block_is_noticed() {
        let block = [1.0f32; 4];
        let blocks: Blocks<'_> = [((0, 1), &block[..])].into_iter().collect();
        assert_eq!(sum(&blocks, 2, 2, 1, &mut [0.0; 4], Vec::new()), None);
        assert_eq!(sum(&blocks, 1, 2, 1, &mut [0.0; 4], Vec::new()), Some(true));
        assert_eq!(sum(&blocks, 1, 2, 1, &mut [0.0; 5], Vec::new()), None);
    }

    #[test]
    fn a_sum_that_is_not_finite_is_noticed_wherever_it_is() {
        let len = 2 * THREAD + 9;
        for at in [0, CHUNK, THREAD + 1, len - 1] {
            for (bad, finite) in [(f32::NAN, false), (f32::INFINITY, false), (f32::MAX, true)] {
                let mut block = vec![1.0; len];
                block[at] = bad;
                let blocks: Blocks<'_> = [((0, 1), &block[..])].into_iter().collect();
                assert_eq!(
                    sum(&blocks, 1, 1, 3, &mut vec![0.0; len], Vec::new()),
                    Some(finite),
                    "{bad} at {at}"
                );
            }
        }
    }
}
