//! A step as the coordinator runs it: whatever the scheduler wants is done, until it says that the step is over.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use unisono_graph::Program;

use crate::attempt::{Attempt, Kept};
use crate::error::ReplicaError;
use crate::feed::Feed;
use crate::message::{Context, Reply, Request, Work};
use crate::outputs::Outputs;
use crate::replicas::Replicas;
use crate::report::Left;
use crate::schedule::{Action, Event, Piece, Verdict};

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All outputs, those of the last segment included if it ran.
    pub outputs: Outputs,
    /// Whether the last segment ran; false after [`Verdict::Skip`].
    pub committed: bool,
    /// Who left since the last step's outcome, this step included. The bits are as if they had never been there.
    pub left: Vec<Left>,
}

/// Why the scheduler was told to give up.
enum Trouble {
    Error(ReplicaError),
    /// A sum that stayed on the device is not finite: at this cut.
    BadCut(usize),
    /// Two replicas gave different bytes.
    Differ {
        of: usize,
        by: usize,
        piece: Piece,
    },
}

/// What does not change while a step is tried.
pub(crate) struct Task {
    pub index: usize,
    pub program: Arc<Program>,
    pub feed: Arc<Feed>,
}

impl Replicas {
    /// Runs a program on a batch, on all replicas as if they were one.
    ///
    /// `decide` is asked once, when everything but the last segment is done, with the outputs that are there by then. The
    /// state changes only after [`Verdict::Commit`], on all replicas.
    ///
    /// # Errors
    /// What is wrong with the feed, before anything runs; [`ReplicaError::NotFinite`], with the state unchanged;
    /// [`ReplicaError::Load`] if the program was not prepared and cannot be; [`ReplicaError::Audit`], with the state
    /// unchanged; [`ReplicaError::NoneLeft`].
    pub fn step(
        &mut self,
        program: usize,
        feed: &Feed,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let ready = self.ready(program)?;
        feed.check(&ready.program, self.options.global_batch)?;
        let task = Task { index: program, program: Arc::clone(&ready.program), feed: Arc::new(feed.clone()) };
        let mut job = self.job(program, feed.rows)?;
        job.audit = self.audited_shard(&job);
        self.steps += 1;
        self.context = Context { began: Some(Instant::now()), added: None };
        let outcome = self.carry_out(&task, job, decide);
        self.context = Context::default();
        outcome
    }

    fn carry_out(
        &mut self,
        task: &Task,
        job: crate::schedule::Job,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let shards = job.sizes.len();
        let sizes = job.sizes.clone();
        let audits = job.audit.is_some();
        let mut attempt = Attempt::new(&task.program, shards);
        let mut trouble = None;
        let mut audit = None;
        self.early.start(&task.program, shards);
        self.tell(Event::Begin(job));
        loop {
            match self.next() {
                Action::Load { worker, ticket, program, run } => {
                    self.send(worker, ticket, Request::Load { program, run });
                }
                Action::Run { worker, ticket, piece, segments, .. } => {
                    self.early.runs(worker, piece.shards.clone(), piece.run.shards);
                    let work = self.work(task, &mut attempt, worker, &piece, segments);
                    self.send(worker, ticket, Request::Run(work));
                }
                Action::Refresh { worker, ticket, piece } => {
                    let work = self.work(task, &mut attempt, worker, &piece, 0..task.program.segments() - 1);
                    self.send(worker, ticket, Request::Run(work));
                }
                Action::Audit { worker, ticket, piece, of } => {
                    let work = self.work(task, &mut attempt, worker, &piece, 0..task.program.segments() - 1);
                    self.send(worker, ticket, Request::Run(work));
                    audit = Some((of, piece));
                }
                Action::Compare { worker, .. } => {
                    let (reply, early) = (self.replies.remove(&worker), self.early.sent(worker));
                    if let (Some((of, piece)), Some(Reply::Harvest(mut again))) = (audit.take(), reply) {
                        again.blocks.extend(early);
                        if !attempt.has_given(&task.program, &piece, &again) {
                            trouble.get_or_insert(Trouble::Differ { of, by: worker, piece });
                            self.tell(Event::GiveUp);
                        }
                    }
                }
                Action::Keep { worker, shards, segments } => {
                    let Some(Reply::Harvest(mut harvest)) = self.replies.remove(&worker) else { continue };
                    harvest.blocks.splice(0..0, self.early.sent(worker));
                    if let Some(cut) = harvest.bad_cut {
                        trouble.get_or_insert(Trouble::BadCut(cut));
                    }
                    attempt.kept.push(Kept { replica: worker, shards, segments, harvest });
                }
                Action::Restart => {
                    // Of those that make do with fewer shards.
                    self.failures.clear();
                    self.early.start(&task.program, shards);
                    let fresh = Attempt::new(&task.program, shards);
                    self.recycle(std::mem::replace(&mut attempt, fresh));
                }
                Action::Sum { cut, shards, leaves } => {
                    let began = Instant::now();
                    let summed = self.exchange(&task.program, &mut attempt, cut, shards, leaves);
                    self.context.added = Some((began, Instant::now()));
                    self.early.next();
                    if !audits {
                        attempt.forget(cut);
                    }
                    attempt.gather(&task.program);
                    match summed {
                        Ok(()) => self.tell(Event::Summed),
                        Err(error) => {
                            trouble.get_or_insert(Trouble::Error(error));
                            self.tell(Event::GiveUp);
                        }
                    }
                }
                Action::Decide => {
                    self.early.next();
                    attempt.gather(&task.program);
                    let verdict = decide(&attempt.outputs);
                    self.tell(Event::Decided(verdict));
                }
                Action::End { committed, shares } => {
                    attempt.gather(&task.program);
                    for (&replica, &(shards, samples)) in &shares {
                        let report = self.team.report(replica);
                        report.steps += 1;
                        report.shards += shards as u64;
                        report.samples += samples as u64;
                    }
                    let outputs = std::mem::take(&mut attempt.outputs);
                    self.recycle(attempt);
                    return Ok(Outcome { outputs, committed, left: std::mem::take(&mut self.untold) });
                }
                Action::GivenUp => {
                    attempt.gather(&task.program);
                    let error = match trouble {
                        Some(Trouble::Error(error)) => error,
                        Some(Trouble::BadCut(cut)) => self.diagnose(task, &sizes, cut),
                        Some(Trouble::Differ { of, by, piece }) => {
                            self.arbitrate(task, &mut attempt, of, by, &piece)
                        }
                        None => self.refused(task.index),
                    };
                    let error = error.showing(&task.program, &attempt.outputs);
                    self.recycle(attempt);
                    return Err(error);
                }
                Action::NoneLeft => return Err(self.none_left()),
                Action::Spread { from } => self.spread(from, task.program.states().len()),
                Action::Ask { .. } | Action::Heard | Action::Leave { .. } => {}
            }
        }
    }

    /// Gives the state of one to all others. If it is lost before it has told it, the step starts again.
    fn spread(&mut self, from: usize, states: usize) {
        let replies = self.ask(vec![from], self.options.deadline, &mut |_| Request::ReadStates {
            indices: (0..states).collect(),
            into: Vec::new(),
        });
        let Some((_, Reply::States(state))) = replies.into_iter().next() else { return };
        let state = Arc::new(state);
        let others = self.scheduler.present().into_iter().filter(|&replica| replica != from).collect();
        self.ask(others, self.options.deadline, &mut |_| Request::WriteStates(Arc::clone(&state)));
        self.tell(Event::Spread);
    }

    /// Some segments of a piece, with the sums they wait for. What the replica has lent, it has back then.
    pub(crate) fn work(
        &mut self,
        task: &Task,
        attempt: &mut Attempt,
        replica: usize,
        piece: &Piece,
        segments: Range<usize>,
    ) -> Work {
        attempt.give_back(replica, &mut self.memory);
        // Nobody wants what it gave when it only had to run its own shards again.
        drop((self.replies.remove(&replica), self.early.sent(replica)));
        Work {
            program: task.index,
            run: Arc::clone(&piece.run),
            step: self.steps - 1,
            sums: attempt.sums_for(&task.program, &segments),
            segments,
            feed: Arc::clone(&task.feed),
            first_row: piece.first_row,
        }
    }

    /// Keeps the memory that the next step will want.
    fn recycle(&mut self, attempt: Attempt) {
        let Attempt { kept, sums, .. } = attempt;
        let blocks = kept.into_iter().flat_map(|kept| kept.harvest.blocks).map(|(_, values)| values);
        self.memory.keep(sums.into_iter().map(|(_, sums)| sums).collect(), blocks);
    }
}
