//! One step as a transaction: the coordinator does what the scheduler wants, one function an action, until
//! the step is over.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use crate::batch::outputs::Outputs;
use crate::error::ReplicaError;
use crate::schedule::{Action, Event, Job, ShardGroup, Verdict};
use crate::worker::message::{Reply, Request};

use super::attempt::{Attempt, Kept};
use super::replicas::Replicas;
use super::step::{Audited, Outcome, Task};

/// The reason for which a step is given up.
enum Trouble {
    Error(ReplicaError),
    /// A sum that stayed on the device is not finite: at this cut.
    BadCut(usize),
}

/// A step that is under way.
pub(super) struct Transaction<'a> {
    replicas: &'a mut Replicas,
    task: &'a Task,
    /// The samples of each shard.
    sizes: Vec<usize>,
    attempt: Attempt,
    /// Whether digests of all blocks are kept.
    audited: bool,
    /// The first thing that went wrong.
    trouble: Option<Trouble>,
}

impl<'a> Transaction<'a> {
    /// Tells the scheduler of the step.
    pub fn begin(replicas: &'a mut Replicas, task: &'a Task, job: Job) -> Self {
        let (sizes, audited) = (job.sizes.clone(), job.audited);
        replicas.overlap.start(&task.program, sizes.len());
        replicas.tell(Event::Begin(job));
        let attempt = Attempt::new(&task.program, sizes.len());
        Self { replicas, task, sizes, attempt, audited, trouble: None }
    }

    /// Does what the scheduler wants until the step is over.
    pub fn run(mut self, decide: &mut dyn FnMut(&Outputs) -> Verdict) -> Result<Outcome, ReplicaError> {
        loop {
            match self.replicas.next() {
                Action::Load { worker, ticket, program, run } => {
                    self.replicas.send(worker, ticket, Request::Load { program, run });
                }
                Action::Run { worker, ticket, group, segments, .. } => {
                    self.replicas.overlap.runs(worker, group.shards.clone(), group.run.shards);
                    self.order(worker, ticket, &group, segments);
                }
                Action::Keep { worker, shards, segments } => self.keep(worker, shards, segments),
                Action::Restart => self.restart(),
                Action::Sum { cut, shards, leaves } => self.sum(cut, shards, leaves),
                Action::Decide => self.decide(decide),
                Action::End { committed, shares } => return self.end(committed, &shares),
                Action::GivenUp => return Err(self.given_up()),
                Action::NoneLeft => return Err(self.replicas.none_left()),
                Action::Spread { from } => {
                    self.replicas.spread(from, self.task.program.states().len());
                }
                Action::Ask { .. } | Action::Heard | Action::Leave { .. } => {}
            }
        }
    }

    /// Orders a worker to run segments of a group of shards.
    fn order(&mut self, worker: usize, ticket: u64, group: &ShardGroup, segments: Range<usize>) {
        let work = self.replicas.work(self.task, &mut self.attempt, worker, group, segments);
        self.replicas.send(worker, ticket, Request::Run(work));
    }

    /// Keeps what a worker returned, which counts from now on.
    fn keep(&mut self, replica: usize, shards: Range<usize>, segments: Range<usize>) {
        let Some(Reply::Results(mut results)) = self.replicas.replies.remove(&replica) else { return };
        results.blocks.splice(0..0, self.replicas.overlap.sent(replica));
        if let Some(cut) = results.bad_cut {
            self.trouble.get_or_insert(Trouble::BadCut(cut));
        }
        self.attempt.kept.push(Kept { replica, shards, segments, results });
    }

    /// Forgets all that was kept: the step starts again.
    fn restart(&mut self) {
        // Failures of workers that go on with fewer shards.
        self.replicas.failures.clear();
        self.replicas.overlap.start(&self.task.program, self.sizes.len());
        let fresh = Attempt::new(&self.task.program, self.sizes.len());
        self.replicas.recycle(std::mem::replace(&mut self.attempt, fresh));
    }

    /// Sums the buckets of a cut over all shards.
    fn sum(&mut self, cut: usize, shards: usize, leaves: usize) {
        let began = Instant::now();
        let summed = self.replicas.all_reduce(&self.task.program, &mut self.attempt, cut, shards, leaves);
        self.replicas.context.added = Some((began, Instant::now()));
        self.replicas.overlap.next();
        if self.audited {
            self.attempt.digest_blocks(&self.task.program, cut, leaves);
        }
        self.attempt.forget(cut);
        self.attempt.gather(&self.task.program);
        match summed {
            Ok(()) => self.replicas.tell(Event::Summed),
            Err(error) => {
                self.trouble.get_or_insert(Trouble::Error(error));
                self.replicas.tell(Event::GiveUp);
            }
        }
    }

    /// Asks the caller whether to commit.
    fn decide(&mut self, decide: &mut dyn FnMut(&Outputs) -> Verdict) {
        self.replicas.overlap.next();
        self.attempt.gather(&self.task.program);
        let verdict = decide(&self.attempt.outputs);
        self.replicas.tell(Event::Decided(verdict));
    }

    /// The step is over: adds to the reports and returns its outcome, or the error of a state that is not
    /// finite.
    fn end(
        mut self,
        committed: bool,
        shares: &BTreeMap<usize, (usize, usize)>,
    ) -> Result<Outcome, ReplicaError> {
        self.attempt.gather(&self.task.program);
        for (&replica, &(shards, samples)) in shares {
            let report = self.replicas.threads.report(replica);
            report.steps += 1;
            report.shards += shards as u64;
            report.samples += samples as u64;
        }
        let flags = self.attempt.state_flags(&self.task.program);
        let outputs = std::mem::take(&mut self.attempt.outputs);
        let blocks = std::mem::take(&mut self.attempt.blocks);
        let sums = std::mem::take(&mut self.attempt.sum_digests);
        self.replicas.recycle(self.attempt);
        let left = std::mem::take(&mut self.replicas.untold);
        self.replicas.check_state_flags(self.task.index, &flags)?;
        let ran = shares.iter().filter(|(_, (shards, _))| *shards > 0).map(|(&replica, _)| replica).collect();
        let audit = self.audited.then(|| Audited { blocks, sums, ran, ..Audited::default() });
        Ok(Outcome { outputs, committed, left, audit })
    }

    /// The step was given up: returns why, after finding the culprit where that takes more work.
    fn given_up(mut self) -> ReplicaError {
        self.attempt.gather(&self.task.program);
        let error = match self.trouble {
            Some(Trouble::Error(error)) => error,
            Some(Trouble::BadCut(cut)) => self.replicas.diagnose(self.task, &self.sizes, cut),
            None => self.replicas.refused(self.task.index),
        };
        let error = error.showing(&self.task.program, &self.attempt.outputs);
        self.replicas.recycle(self.attempt);
        error
    }
}
