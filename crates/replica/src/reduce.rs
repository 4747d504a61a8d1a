//! The all-reduce between two segments, as the coordinator runs it.

use std::sync::Arc;

use unisono_graph::{Program, Run};

use crate::attempt::{Attempt, Kept};
use crate::error::ReplicaError;
use crate::exchange::{not_finite, sum};
use crate::message::{Reply, Request};
use crate::replicas::{Buffers, Replicas};
use crate::schedule::Piece;
use crate::step::Task;

impl Replicas {
    /// Sums the buckets of a cut over all shards, and shows those sums that are outputs.
    pub(crate) fn exchange(
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
            let (sums, finite) = match self.early.take(bucket) {
                Some(summed) => summed,
                None => {
                    let mut sums = self.buffers.sums(decl.len);
                    let blocks = attempt.blocks(cut, bucket, decl.len, leaves);
                    let finite = sum(&blocks, shards, leaves, self.buffers.threads, &mut sums)
                        .ok_or(ReplicaError::Incomplete { step, bucket })?;
                    (sums, finite)
                }
            };
            if !finite {
                bad.extend(not_finite(program, bucket, &sums));
            }
            for (index, output) in program.outputs().iter().enumerate() {
                if let Some((_, first)) = output.sum.filter(|(of, _)| *of == bucket) {
                    let words = bytemuck::cast_slice(&sums[first..first + output.ty.count()]);
                    attempt.outputs.set(index, words);
                }
            }
            attempt.sums.push((bucket, Arc::new(sums)));
        }
        let more = bad.len().saturating_sub(1);
        match bad.into_iter().min() {
            Some((node, what)) => {
                Err(ReplicaError::NotFinite { step, what, sum: Some(node), more, outputs: Box::default() })
            }
            None => Ok(()),
        }
    }

    /// Names what is not finite where the sums stayed on the device: runs the step up to that cut again, with its sums exposed.
    pub(crate) fn diagnose(&mut self, task: &Task, sizes: &[usize], cut: usize) -> ReplicaError {
        // Beside a shard that nobody has, all others are not the whole.
        let leaves = sizes.len() + 1;
        let run = Arc::new(Run { first: 0, sizes: sizes.to_vec(), shards: leaves });
        let piece = Piece { shards: 0..sizes.len(), run, first_row: 0 };
        let mut attempt = Attempt::new(&task.program, sizes.len());
        for segment in 0..=cut {
            let Some(&replica) = self.scheduler.present().first() else { return self.none_left() };
            let Some(harvest) = self.run_aside(task, &attempt, replica, &piece, segment..segment + 1) else {
                break;
            };
            let shards = piece.shards.clone();
            attempt.kept.push(Kept { replica, shards, segments: segment..segment + 1, harvest });
            if let Err(error) = self.exchange(&task.program, &mut attempt, segment, sizes.len(), leaves) {
                return error;
            }
        }
        let what = format!("a sum of segment {cut}");
        ReplicaError::NotFinite { step: self.steps - 1, what, sum: None, more: 0, outputs: Box::default() }
    }

    /// Lets one replica run something that is not part of the step. None if it leaves.
    pub(crate) fn run_aside(
        &mut self,
        task: &Task,
        attempt: &Attempt,
        replica: usize,
        piece: &Piece,
        segments: std::ops::Range<usize>,
    ) -> Option<crate::message::Harvest> {
        let mut work = Some(self.work(task, attempt, replica, piece, segments));
        let within = self.options.deadline.max(crate::replicas::OPENING);
        let replies = self.ask(vec![replica], within, &mut |_| match work.take() {
            Some(work) => Request::Run(work),
            None => Request::Digest,
        });
        match replies.into_iter().next() {
            Some((_, Reply::Harvest(mut harvest))) => {
                harvest.blocks.splice(0..0, self.early.sent(replica));
                Some(harvest)
            }
            _ => None,
        }
    }
}

impl Buffers {
    /// Memory that nobody reads any more, or new.
    pub fn sums(&mut self, len: usize) -> Vec<f32> {
        let free = self.sums.iter().position(|sums| sums.len() == len && Arc::strong_count(sums) == 1);
        let free = free.map(|at| self.sums.swap_remove(at));
        free.and_then(|sums| Arc::try_unwrap(sums).ok()).unwrap_or_else(|| vec![0.0; len])
    }
}
