//! One step as a transaction: the coordinator does what the scheduler wants, one function an action, until
//! the step is over.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use unisono_cluster::ClusterError;

use crate::batch::outputs::Outputs;
use crate::error::ReplicaError;
use crate::schedule::{Action, Event, Job, Roles, ShardGroup, Share, Verdict};
use crate::worker::message::{Reply, Request};

use super::attempt::{Attempt, Kept};
use super::machines::hold;
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
    /// The samples of each shard of this machine.
    sizes: Vec<usize>,
    /// Where these shards are in the batch, if other machines have others.
    share: Option<Share>,
    /// The samples of each shard of the whole batch.
    all: Vec<usize>,
    /// What the caller has decided. Where the machines change, the step starts again and it stands.
    verdict: Option<Verdict>,
    attempt: Attempt,
    /// Whether digests of all blocks are kept.
    audited: bool,
    /// Whether this is the step itself and not the same step made again, which reports do not count.
    counts: bool,
    /// The first thing that went wrong.
    trouble: Option<Trouble>,
}

impl<'a> Transaction<'a> {
    /// Tells the scheduler of the step.
    pub fn begin(replicas: &'a mut Replicas, task: &'a Task, job: Job) -> Self {
        let (sizes, audited, counts) =
            (job.sizes.clone(), job.audited, matches!(job.roles, Roles::Usual | Roles::Even));
        let share = job.share;
        let all = if share.is_some() { replicas.sizes(task.feed.rows) } else { sizes.clone() };
        replicas.overlap.start(&task.program, sizes.len(), share.is_some());
        replicas.start_exchange(&task.program, share);
        replicas.notify(Event::Begin(job));
        let attempt = Attempt::new(&task.program, sizes.len());
        Self { replicas, task, sizes, share, all, verdict: None, attempt, audited, counts, trouble: None }
    }

    /// Does what the scheduler wants until the step is over.
    pub fn run(mut self, decide: &mut dyn FnMut(&Outputs) -> Verdict) -> Result<Outcome, ReplicaError> {
        loop {
            match self.replicas.next() {
                Action::Load { worker, ticket, program, run } => {
                    self.replicas.send(worker, ticket, Request::Load { program, run });
                }
                Action::Run { worker, ticket, group, segments, .. } => {
                    let shards = self.in_batch(&group.shards);
                    self.replicas.overlap.runs(worker, shards, group.run.shards);
                    self.order(worker, ticket, &group, segments);
                }
                Action::Keep { worker, shards, segments } => {
                    let shards = self.in_batch(&shards);
                    self.keep(worker, shards, segments);
                }
                Action::Restart => self.restart(),
                Action::Sum { cut, leaves, .. } if self.share.is_some() => self.sum_everywhere(cut, leaves),
                Action::Sum { cut, shards, leaves } => self.sum(cut, shards, leaves),
                Action::Decide => self.decide(decide),
                Action::End { committed, shares } => return self.end(committed, &shares),
                Action::GivenUp { refused } => return Err(self.given_up(refused)),
                Action::NoneLeft => return Err(self.replicas.none_left()),
                Action::Spread { from } => {
                    self.replicas.spread(from, self.task.program.states().len());
                }
                Action::Ask { .. } | Action::AllAnswered | Action::Leave { .. } => {}
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
        let Some(Reply::Results(results)) = self.replicas.replies.remove(&replica) else { return };
        if let Some(cut) = results.bad_cut {
            self.trouble.get_or_insert(Trouble::BadCut(cut));
        }
        self.attempt.kept.push(Kept { replica, shards, segments, results });
    }

    /// Forgets all that was kept: the step starts again.
    fn restart(&mut self) {
        // Failures of workers that go on with fewer shards.
        self.replicas.failures.clear();
        self.replicas.overlap.start(&self.task.program, self.sizes.len(), self.share.is_some());
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
            Ok(()) => self.replicas.notify(Event::Summed),
            Err(error) => self.give_up(error),
        }
    }

    /// Asks the caller whether to commit.
    fn decide(&mut self, decide: &mut dyn FnMut(&Outputs) -> Verdict) {
        self.replicas.overlap.next();
        self.attempt.gather(&self.task.program);
        let outputs = &self.attempt.outputs;
        let verdict = *self.verdict.get_or_insert_with(|| decide(outputs));
        if self.share.is_some() && !self.task.program.graph().updates.is_empty() {
            return self.agree(verdict);
        }
        self.replicas.notify(Event::Decided(verdict));
    }

    /// Commits or skips, if all machines have decided so.
    fn agree(&mut self, verdict: Verdict) {
        match self.replicas.agree(self.task, verdict) {
            Ok(()) => self.replicas.notify(Event::Decided(verdict)),
            Err(error) => self.not_together(error),
        }
    }

    /// Returns the place in the batch of some of this machine's shards.
    fn in_batch(&self, shards: &Range<usize>) -> Range<usize> {
        let first = self.share.map_or(0, |share| share.first);
        if shards.is_empty() { shards.clone() } else { first + shards.start..first + shards.end }
    }

    /// Sums the buckets of a cut over the shards of all machines, and joins their outputs.
    fn sum_everywhere(&mut self, cut: usize, leaves: usize) {
        let began = Instant::now();
        self.replicas.machines.waits();
        let summed = self.replicas.all_reduce_everywhere(&self.task.program, &mut self.attempt, cut, leaves);
        self.replicas.context.added = Some((began, Instant::now()));
        self.replicas.overlap.next();
        self.attempt.forget(cut);
        let program = &self.task.program;
        let joined = match &summed {
            Ok(()) | Err(ReplicaError::NotFinite { .. }) => {
                self.replicas.gather_outputs(program, &mut self.attempt, Some(cut))
            }
            Err(_) => Ok(()),
        };
        // Ranks that are lost count more than a sum that is not finite: it will be seen again.
        self.replicas.machines.works();
        match joined.and(summed) {
            Ok(()) => self.replicas.notify(Event::Summed),
            Err(error) => self.not_together(error),
        }
    }

    /// Starts again if ranks were lost, and gives the step up otherwise.
    fn not_together(&mut self, error: ReplicaError) {
        if error == ReplicaError::Cluster(ClusterError::Changed) {
            (self.sizes, self.share) = self.replicas.share_of(&self.all);
            self.replicas.start_exchange(&self.task.program, self.share);
            let (sizes, share) = (self.sizes.clone(), self.share);
            let first = share.map_or(0, |share| share.first_row);
            let rows = first..first + sizes.iter().sum::<usize>();
            if let Err(error) = hold(&self.task.program, &self.task.feed, rows) {
                return self.give_up(error);
            }
            return self.replicas.notify(Event::Moved { sizes, share });
        }
        self.give_up(error);
    }

    /// Gives the step up because of an error. The first error is the one that the step returns.
    fn give_up(&mut self, error: ReplicaError) {
        self.trouble.get_or_insert(Trouble::Error(error));
        self.replicas.notify(Event::GiveUp);
    }

    /// The step is over: adds to the reports and returns its outcome, or the error of a state that is not
    /// finite.
    fn end(
        mut self,
        committed: bool,
        shares: &BTreeMap<usize, (usize, usize)>,
    ) -> Result<Outcome, ReplicaError> {
        if self.share.is_some() {
            self.replicas.gather_last_outputs(&self.task.program, &mut self.attempt)?;
        }
        self.attempt.gather(&self.task.program);
        if committed && !self.task.program.graph().updates.is_empty() {
            self.replicas.hand_round()?;
        }
        for (&replica, &(shards, samples)) in shares.iter().filter(|_| self.counts) {
            let report = self.replicas.threads.report(replica);
            report.steps += 1;
            report.shards += shards as u64;
            report.samples += samples as u64;
        }
        let flags = self.attempt.state_flags(&self.task.program);
        let outputs = std::mem::take(&mut self.attempt.outputs);
        let blocks = std::mem::take(&mut self.attempt.blocks);
        let sums = std::mem::take(&mut self.attempt.sum_digests);
        let ran = self.attempt.runners();
        self.replicas.recycle(self.attempt);
        self.replicas.check_state_flags(self.task.index, &flags)?;
        let audit = self.audited.then(|| Audited { blocks, sums, ran, ..Audited::default() });
        Ok(Outcome { outputs, committed, left: Vec::new(), audit })
    }

    /// The step was given up: returns why, after finding the culprit where that takes more work.
    fn given_up(mut self, refused: Option<usize>) -> ReplicaError {
        self.attempt.gather(&self.task.program);
        let error = match self.trouble {
            Some(Trouble::Error(error)) => error,
            Some(Trouble::BadCut(cut)) => self.replicas.diagnose(self.task, &self.sizes, cut),
            None => self.replicas.refused(self.task.index, refused),
        };
        let error = error.showing(&self.task.program, &self.attempt.outputs);
        self.replicas.recycle(self.attempt);
        error
    }
}
