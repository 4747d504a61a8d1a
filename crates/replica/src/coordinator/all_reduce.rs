//! The all-reduce between two segments, on the host.

use std::sync::Arc;

use unisono_graph::Program;

use crate::coordinator::attempt::Attempt;
use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::sums::tree_sum::{not_finite, sum};

impl Replicas {
    /// Sums the buckets of a cut over all shards, and stores those sums that are outputs.
    pub(crate) fn all_reduce(
        &mut self,
        program: &Program,
        attempt: &mut Attempt,
        cut: usize,
        shards: usize,
        leaves: usize,
    ) -> Result<(), ReplicaError> {
        let step = self.steps.saturating_sub(1);
        let mut bad = Vec::new();
        for (bucket, decl) in program.buckets().iter().enumerate().filter(|(_, bucket)| bucket.cut == cut) {
            let (sums, finite) = match self.overlap.take(bucket) {
                Some(summed) => summed,
                None => {
                    let mut sums = self.memory.take(decl.len);
                    let (blocks, threads) =
                        (attempt.blocks(cut, bucket, decl.len, leaves), self.memory.threads);
                    let finite = self.overlap.lent.fill(bucket, false, |places| {
                        sum(&blocks, shards, leaves, threads, &mut sums, places)
                    });
                    (sums, finite.ok_or(ReplicaError::Incomplete { step, bucket })?)
                }
            };
            if !finite {
                bad.extend(not_finite(program, bucket, &sums));
            }
            attempt.take_sums(program, bucket, Arc::new(sums));
        }
        ReplicaError::of_sums(step, bad)
    }
}
