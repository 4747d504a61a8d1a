//! One attempt at a step: the results of replicas that count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use unisono_graph::{Program, tree};

use crate::batch::outputs::{Outputs, Part};
use crate::sums::tree_sum::Blocks;
use crate::sums::values::HostMemory;
use crate::worker::digest::Digest;
use crate::worker::message::{SegmentResults, Sums};

/// The results of a replica for some segments of a group of shards.
#[derive(Debug)]
pub(crate) struct Kept {
    pub replica: usize,
    pub shards: Range<usize>,
    pub segments: Range<usize>,
    pub results: SegmentResults,
}

#[derive(Debug)]
pub(crate) struct Attempt {
    pub kept: Vec<Kept>,
    /// The sums of all cuts so far.
    pub sums: Sums,
    pub outputs: Outputs,
    /// The number of entries of `kept` whose outputs are in `outputs`.
    gathered: usize,
    /// The number of non-empty shards of the batch.
    shards: usize,
    /// The digests of all blocks of an audited step.
    pub blocks: BlockDigests,
    /// The digests of the sums over all shards of an audited step, by bucket.
    pub sum_digests: BTreeMap<usize, Digest>,
}

/// Digests of the blocks of a step: sums over the shards of a subtree. The key is the bucket, and the first
/// shard and the one after the last.
pub(crate) type BlockDigests = BTreeMap<(usize, usize, usize), Digest>;

impl Attempt {
    pub fn new(program: &Program, shards: usize) -> Self {
        let outputs = Outputs::new(program.outputs().len());
        Self {
            kept: Vec::new(),
            sums: Sums::new(),
            outputs,
            gathered: 0,
            shards,
            blocks: BlockDigests::new(),
            sum_digests: BTreeMap::new(),
        }
    }

    /// Joins the outputs of the results that were kept since the last call, in the order of the samples.
    pub fn gather(&mut self, program: &Program) {
        let (parts, complete) = self.take_parts();
        self.outputs.gather(program, parts, complete);
    }

    /// Takes the outputs of the results that were kept since the last call, in the order of the samples, and
    /// whether they are those of all shards.
    pub fn take_parts(&mut self) -> (Vec<Part>, bool) {
        let new = &mut self.kept[self.gathered..];
        // The first part gives the outputs without samples: they are those of a replica that has shards. What
        // a replica makes alone must not show what an idle one makes of it.
        new.sort_by_key(|kept| (kept.shards.is_empty(), kept.shards.start, kept.shards.end));
        let complete = new.iter().map(|kept| kept.shards.len()).sum::<usize>() == self.shards;
        let parts = new.iter_mut().map(|kept| std::mem::take(&mut kept.results.outputs)).collect();
        self.gathered = self.kept.len();
        (parts, complete)
    }

    /// Returns the replica that ran each shard.
    pub fn runners(&self) -> BTreeMap<usize, usize> {
        let first = self.kept.iter().filter(|kept| kept.segments.start == 0);
        first.flat_map(|kept| kept.shards.clone().map(|shard| (shard, kept.replica))).collect()
    }

    /// Returns the blocks of a bucket that came with this cut, by the shards that they sum.
    pub fn blocks(&self, cut: usize, bucket: usize, len: usize, leaves: usize) -> Blocks<'_> {
        let mut blocks: Blocks<'_> = BTreeMap::new();
        for kept in self.kept.iter().filter(|kept| kept.segments.contains(&cut)) {
            if let Some((_, values)) = kept.results.blocks.iter().find(|(of, _)| *of == bucket) {
                let ranges = tree::blocks(kept.shards.clone(), leaves).into_iter().map(|r| (r.start, r.end));
                blocks.extend(ranges.zip(values.chunks_exact(len.max(1))));
            }
        }
        blocks
    }

    /// Takes the sums of a bucket over all shards, and stores those that are outputs.
    pub fn take_sums(&mut self, program: &Program, bucket: usize, sums: Arc<Vec<f32>>) {
        for (index, output) in program.outputs().iter().enumerate() {
            if let Some((_, first)) = output.sum.filter(|(of, _)| *of == bucket) {
                self.outputs.set(index, bytemuck::cast_slice(&sums[first..first + output.ty.count()]));
            }
        }
        self.sums.push((bucket, sums));
    }

    /// Keeps the digests of a cut's blocks, and of the sums so far.
    pub fn digest_blocks(&mut self, program: &Program, cut: usize, leaves: usize) {
        let mut digests = BlockDigests::new();
        for (bucket, decl) in program.buckets().iter().enumerate().filter(|(_, bucket)| bucket.cut == cut) {
            for ((first, end), values) in self.blocks(cut, bucket, decl.len, leaves) {
                let mut digest = Digest::default();
                digest.update(bytemuck::cast_slice(values));
                digests.insert((bucket, first, end), digest);
            }
        }
        self.blocks.extend(digests);
        for (bucket, sums) in &self.sums {
            let mut digest = Digest::default();
            digest.update(bytemuck::cast_slice(sums));
            self.sum_digests.insert(*bucket, digest);
        }
    }

    /// Copies the blocks that lie in a replica's mapped memory and are still needed, so that the replica may
    /// run again.
    pub fn give_back(&mut self, replica: usize, memory: &mut HostMemory) {
        let kept = self.kept.iter_mut().filter(|kept| kept.replica == replica);
        for (_, values) in kept.flat_map(|kept| &mut kept.results.blocks) {
            if values.is_mapped() {
                *values = Arc::new(values.copy(memory));
            }
        }
    }

    /// Drops the mapped blocks of a cut, which is summed and no longer needed.
    pub fn forget(&mut self, cut: usize) {
        for kept in self.kept.iter_mut().filter(|kept| kept.segments.contains(&cut)) {
            kept.results.blocks.retain(|(_, values)| !values.is_mapped());
        }
    }

    /// Returns the sums for which some segments wait.
    pub fn sums_for(&self, program: &Program, segments: &Range<usize>) -> Sums {
        let waits = |bucket: usize| segments.contains(&(program.buckets()[bucket].cut + 1));
        self.sums.iter().filter(|(bucket, _)| waits(*bucket)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::{StateKind, Tape, Type};

    use super::*;

    /// An output of the last segment that no update needs: what every replica downloads.
    fn program() -> Program {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[]));
        let w = tape.state("w", &[], StateKind::Parameter);
        tape.update(&w, &(&w + x.sum_shards()));
        tape.output("penalty", &(&w * &w));
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn kept(replica: usize, shards: Range<usize>) -> Kept {
        let outputs = vec![(0, vec![10 + replica as u32])];
        Kept { replica, shards, segments: 1..2, results: SegmentResults { outputs, ..Default::default() } }
    }

    #[test]
    fn an_output_without_samples_is_that_of_a_replica_with_shards_whoever_answers_first() {
        let program = program();
        for answers in [
            [kept(0, 0..0), kept(1, 0..8), kept(2, 0..0)],
            [kept(2, 0..0), kept(0, 0..0), kept(1, 0..8)],
            [kept(1, 0..8), kept(2, 0..0), kept(0, 0..0)],
        ] {
            let mut attempt = Attempt::new(&program, 8);
            attempt.kept.extend(answers);
            attempt.gather(&program);
            assert_eq!(attempt.outputs.words(0), Some(&[11][..]));
        }
    }
}
