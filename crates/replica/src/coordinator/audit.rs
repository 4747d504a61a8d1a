//! Audits: a replica runs the shards of another one again, and its sums must be the same bytes.

use unisono_graph::Program;
use unisono_random::{Stream, below, stream};

use crate::coordinator::attempt::Attempt;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::Task;
use crate::error::ReplicaError;
use crate::schedule::{Job, ShardGroup};
use crate::worker::message::SegmentResults;

impl Attempt {
    /// Returns whether the blocks that were kept of these shards are, bucket by bucket, the same bytes as
    /// those of `again`.
    pub fn has_given(&self, program: &Program, group: &ShardGroup, again: &SegmentResults) -> bool {
        again.blocks.iter().all(|(bucket, values)| {
            let decl = &program.buckets()[*bucket];
            let blocks = self.blocks(decl.cut, *bucket, decl.len, group.run.shards);
            blocks.get(&(group.shards.start, group.shards.end)).is_some_and(|kept| same_bits(kept, values))
        })
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

impl Replicas {
    /// Returns the shard that is audited in the coming step, if one is. It is drawn by the step's number
    /// alone.
    pub(crate) fn audited_shard(&self, job: &Job) -> Option<usize> {
        let every = self.options.audit_every;
        let due = every > 0 && job.changes_state && self.steps % every == every - 1;
        due.then(|| {
            let word = Stream::new(0, stream("audit", "shard")).word(0, self.steps, 0);
            below(word, job.sizes.len() as u32) as usize
        })
    }

    /// Finds out which of two replicas is wrong: a third one runs the shards again, or, without a third, the
    /// audited one.
    pub(crate) fn arbitrate(
        &mut self,
        task: &Task,
        attempt: &mut Attempt,
        of: usize,
        by: usize,
        group: &ShardGroup,
    ) -> ReplicaError {
        let step = self.steps - 1;
        let present = self.scheduler.present();
        let third = present.iter().copied().find(|&replica| replica != of && replica != by);
        let judge = third.or(present.contains(&of).then_some(of));
        let segments = 0..task.program.segments() - 1;
        let again = judge.and_then(|judge| self.run_diagnostic(task, attempt, judge, group, segments).ok());
        let agrees = again.map(|again| attempt.has_given(&task.program, group, &again));
        let (of, by) = ((of, self.adapter(of)), (by, self.adapter(by)));
        let name = |(replica, adapter): &(usize, String)| format!("replica {replica} ({adapter})");
        let verdict = match (third, agrees) {
            (Some(third), Some(true)) => {
                format!("replica {third} agrees with replica {}: {} is wrong", of.0, name(&by))
            }
            (Some(third), Some(false)) => {
                format!("replica {third} disagrees with replica {}: {} is wrong", of.0, name(&of))
            }
            (None, Some(false)) => format!("asked again, it disagrees with itself: {} is wrong", name(&of)),
            (None, Some(true)) => "asked again, each stays with its own: one of them is wrong".to_owned(),
            (_, None) => "there is nobody to ask: one of them is wrong".to_owned(),
        };
        ReplicaError::Audit { step, shards: group.shards.clone(), of: name(&of), by: name(&by), verdict }
    }
}
