//! Diagnostics: requests to a single replica outside the training step, to find a sum that is not finite.

use std::ops::Range;
use std::sync::Arc;

use unisono_graph::Run;

use crate::coordinator::attempt::{Attempt, Kept};
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::Task;
use crate::error::ReplicaError;
use crate::schedule::ShardGroup;
use crate::worker::message::{Failure, Reply, Request, SegmentResults};

/// Why a replica did not run a diagnostic.
#[derive(Debug)]
pub(crate) enum DiagnosticFailure {
    /// The replica left.
    Left,
    /// The replica has no memory for the diagnostic, or its driver refuses the plan. It stays in the run.
    Refused(Failure),
}

impl Replicas {
    /// Names a sum that is not finite where the sums stayed on the device: one replica runs the step up to
    /// that cut again, with its sums exposed. If that replica leaves or cannot run it, another one is asked.
    pub(crate) fn diagnose(&mut self, task: &Task, sizes: &[usize], cut: usize) -> ReplicaError {
        let mut ways = vec![vec![0..sizes.len()]];
        // One shard at once takes less memory.
        if self.ready(task.index).is_ok_and(|ready| ready.few_at_once) {
            ways.push((0..sizes.len()).map(|shard| shard..shard + 1).collect());
        }
        let mut why = String::new();
        'ways: for groups in ways {
            let mut next = 0;
            while let Some(replica) = self.scheduler.present().into_iter().find(|&replica| replica >= next) {
                next = replica + 1;
                match self.look(task, sizes, cut, replica, &groups) {
                    Ok(Some(found)) => return found,
                    Ok(None) => {
                        why = format!("replica {replica} ran it again, and all were finite");
                        break 'ways;
                    }
                    Err(DiagnosticFailure::Left) => {}
                    Err(DiagnosticFailure::Refused(failure)) => {
                        why = format!("which one, replica {replica} cannot tell: {failure}");
                    }
                }
            }
        }
        if self.is_empty() {
            return self.none_left();
        }
        let what = format!("a sum of segment {cut} ({why})");
        ReplicaError::NotFinite {
            step: self.steps.saturating_sub(1),
            what,
            sum: None,
            more: 0,
            outputs: Box::default(),
        }
    }

    /// Runs a step up to a cut on one replica and sums its results. Returns the error of the first cut with a
    /// sum that is not finite.
    fn look(
        &mut self,
        task: &Task,
        sizes: &[usize],
        cut: usize,
        replica: usize,
        groups: &[Range<usize>],
    ) -> Result<Option<ReplicaError>, DiagnosticFailure> {
        // With one more shard, which is empty, a run of all shards is not whole, and its sums come to the
        // host.
        let leaves = sizes.len() + 1;
        let mut attempt = Attempt::new(&task.program, sizes.len());
        for segment in 0..=cut {
            for shards in groups {
                let sizes_before = &sizes[..shards.start];
                let run = Arc::new(Run {
                    first: shards.start,
                    sizes: sizes[shards.clone()].to_vec(),
                    shards: leaves,
                });
                let group = ShardGroup { shards: shards.clone(), run, first_row: sizes_before.iter().sum() };
                let segments = segment..segment + 1;
                let results = self.run_diagnostic(task, &mut attempt, replica, &group, segments.clone())?;
                attempt.kept.push(Kept { replica, shards: shards.clone(), segments, results });
            }
            if let Err(error) = self.all_reduce(&task.program, &mut attempt, segment, sizes.len(), leaves) {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    /// Has one replica run segments that are not part of the step.
    pub(crate) fn run_diagnostic(
        &mut self,
        task: &Task,
        attempt: &mut Attempt,
        replica: usize,
        group: &ShardGroup,
        segments: Range<usize>,
    ) -> Result<SegmentResults, DiagnosticFailure> {
        // Its blocks are no part of a sum over all shards.
        self.overlap.next();
        self.overlap.stop();
        let mut work = Some(self.work(task, attempt, replica, group, segments));
        let within = self.options.deadline.max(crate::coordinator::replicas::OPENING);
        self.failures.remove(&replica);
        self.is_diagnosing = true;
        let replies = self.ask(vec![replica], within, &mut |_| match work.take() {
            Some(work) => Request::Run(work),
            None => Request::Digest,
        });
        self.is_diagnosing = false;
        match replies.into_iter().next() {
            Some((_, Reply::Results(results))) => Ok(results),
            _ => Err(self
                .failures
                .remove(&replica)
                .map_or(DiagnosticFailure::Left, DiagnosticFailure::Refused)),
        }
    }
}
