//! A step as the caller sees it, and the parts of it that diagnostics use as well. `transaction.rs` runs it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use unisono_cluster::ClusterError;
use unisono_graph::Program;

use crate::batch::feed::Feed;
use crate::batch::outputs::Outputs;
use crate::coordinator::attempt::{Attempt, BlockDigests};
use crate::coordinator::audit::State;
use crate::coordinator::machines::hold;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::transaction::Transaction;
use crate::error::ReplicaError;
use crate::observe::report::Left;
use crate::schedule::{Event, Job, ShardGroup, Verdict};
use crate::worker::digest::Digest;
use crate::worker::message::{Context, Reply, Request, Work};

/// The outcome of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All outputs, including those of the last segment if it ran.
    pub outputs: Outputs,
    /// Whether the last segment ran; false after [`Verdict::Skip`].
    pub committed: bool,
    /// The replicas that left since the last step's outcome, this step included. The bits are as if they had
    /// never been there.
    pub left: Vec<Left>,
    /// The audit of this step, if there was one and it passed. If an audit finds something wrong, the step is
    /// an error instead.
    pub audit: Option<Audited>,
}

/// An audit that a step has passed: it was made twice, by different replicas where there are several, from
/// the same state, and gave the same bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Audited {
    /// The state before the step by tensor, as little-endian bytes, which was the same on all replicas. It is
    /// empty for a program that changes no state.
    pub before: Arc<Vec<Vec<u8>>>,
    /// The digests of all blocks that came to the host. They are there until the audit is over.
    pub(crate) blocks: BlockDigests,
    /// The digests of the sums over all shards, by bucket.
    pub(crate) sums: BTreeMap<usize, Digest>,
    /// The replica that ran each shard.
    pub(crate) ran: BTreeMap<usize, usize>,
    /// The number of the step, if it was handed over to a witness. [`Replicas::hear_witness`] returns this
    /// number once the witness has computed the same bytes.
    pub witnessed: Option<u64>,
}

/// A program and its batch, which all attempts at a step share.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub index: usize,
    pub program: Arc<Program>,
    pub feed: Arc<Feed>,
}

impl Replicas {
    /// Runs a program on a batch, on all replicas as if they were one.
    ///
    /// `decide` is called once, when everything but the last segment is done, with the outputs that are there
    /// by then. The state changes only after [`Verdict::Commit`], and then on all replicas.
    ///
    /// # Errors
    /// Errors of the feed, before anything runs; [`ReplicaError::NotFinite`], with the state unchanged;
    /// [`ReplicaError::Load`] if the program was not prepared and cannot be; [`ReplicaError::Audit`] and
    /// [`ReplicaError::Digests`], after which the caller goes back to a state that it trusts;
    /// [`ReplicaError::NoneLeft`].
    pub fn step(
        &mut self,
        program: usize,
        feed: &Feed,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        self.none_in_flight()?;
        let ready = self.ready(program)?;
        feed.check(&ready.program, self.options.global_batch)?;
        if !self.cluster.is_alone() {
            self.cluster.begin()?;
        }
        let ready = self.ready(program)?;
        let task = Task { index: program, program: Arc::clone(&ready.program), feed: Arc::new(feed.clone()) };
        let job = self.job(program, feed.rows)?;
        hold(&task.program, feed, Self::rows_of(&job))?;
        self.steps += 1;
        self.residents.begin(&task.program)?;
        let mut outcome = self.step_with_audits(&task, job, decide)?;
        self.residents.end(&task.program)?;
        // Those that left in attempts that did not count are told as well, here or after the next step.
        outcome.left = std::mem::take(&mut self.untold);
        Ok(outcome)
    }

    /// Makes a step, and makes it again where an audit is due or a sum is not finite.
    fn step_with_audits(
        &mut self,
        task: &Task,
        job: Job,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let given = self.audited_from.take();
        if self.audits.is_due(task.index) {
            return self.audited_step(task, job, given, decide);
        }
        let began = Instant::now();
        match self.once_in_cluster(task, &job, decide) {
            Ok(outcome) => {
                self.audits.stepped(task.index, began.elapsed());
                Ok(outcome)
            }
            // What is skipped for it, or ends the run, is rare enough to be looked at twice.
            Err(error @ ReplicaError::NotFinite { .. }) if self.audits.audits_any() => {
                let job = Job { audited: true, ..job };
                Err(self.is_not_finite_again(task, &job, &State::default(), error))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a step. Where machines are lost at the end of one that changes nothing, it starts again.
    fn once_in_cluster(
        &mut self,
        task: &Task,
        job: &Job,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let mut outcome = self.once(task, job.clone(), decide);
        while outcome == Err(ReplicaError::Cluster(ClusterError::Changed)) {
            self.cluster.begin()?;
            let job = self.job(task.index, task.feed.rows)?;
            hold(&task.program, &task.feed, Self::rows_of(&job))?;
            outcome = self.once(task, job, decide);
        }
        outcome
    }

    /// Makes a step once.
    pub(super) fn once(
        &mut self,
        task: &Task,
        job: Job,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        self.context = Context { began: Some(Instant::now()), added: None };
        self.failures.clear();
        let outcome = Transaction::begin(self, task, job).run(decide);
        self.context = Context::default();
        // Those of replicas that go on with fewer shards say nothing any more. A diagnostic's caller reads
        // them.
        if !self.is_diagnosing {
            self.failures.clear();
        }
        outcome
    }

    /// Copies the state of one replica to all others. If that replica is lost before, the step starts again.
    pub(super) fn spread(&mut self, from: usize, states: usize) {
        let replies = self.ask(vec![from], self.options.deadline, &mut |_| Request::ReadStates {
            indices: (0..states).collect(),
            into: Vec::new(),
        });
        let Some((_, Reply::States(state))) = replies.into_iter().next() else { return };
        let state = Arc::new(state);
        let others = self.scheduler.present().into_iter().filter(|&replica| replica != from).collect();
        self.ask(others, self.options.deadline, &mut |_| Request::WriteStates(Arc::clone(&state)));
        self.notify(Event::Spread);
    }

    /// Returns the work of some segments of a group of shards, with the sums for which they wait. Mapped
    /// memory of the replica is given back before.
    pub(crate) fn work(
        &mut self,
        task: &Task,
        attempt: &mut Attempt,
        replica: usize,
        group: &ShardGroup,
        segments: Range<usize>,
    ) -> Work {
        if segments.end == task.program.segments() {
            self.residents.note(&task.program, replica, &group.run);
        }
        attempt.give_back(replica, &mut self.memory);
        // The results of a replica that only had to run its own shards again are not needed.
        self.replies.remove(&replica);
        let filled = self.overlap.begin(replica, &group.run, segments.start);
        let sums = attempt.sums_for(&task.program, &segments);
        let report = self.threads.report(replica);
        for (bucket, sums) in &sums {
            let bytes = size_of_val(sums.as_slice()) as u64;
            report.received += bytes;
            report.received_early += if filled.early.contains(bucket) { bytes } else { 0 };
        }
        Work {
            program: task.index,
            run: Arc::clone(&group.run),
            step: self.steps.saturating_sub(1),
            sums,
            in_place: filled.all,
            segments,
            feed: Arc::clone(&task.feed),
            first_row: group.first_row,
        }
    }

    /// Keeps the memory that the next step will use.
    pub(super) fn recycle(&mut self, attempt: Attempt) {
        let Attempt { kept, sums, .. } = attempt;
        let blocks = kept
            .into_iter()
            .flat_map(|kept| kept.results.blocks)
            .filter_map(|(_, values)| Arc::into_inner(values));
        self.memory.keep(sums.into_iter().map(|(_, sums)| sums).collect(), blocks);
    }
}
