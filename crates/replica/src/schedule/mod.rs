//! The scheduler as a state machine: events in, actions out, time an argument. No threads, no clock, no devices.
//!
//! `README.md` beside this file says what always holds; `tests` holds it to that.

mod assign;
mod pace;
mod step;
mod workers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::Run;

pub use assign::Assignment;
use step::{Phase, Step};
pub(crate) use workers::Loss;
use workers::{Order, Task, Workers};

/// What the caller of a step says before it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run the last segment.
    Commit,
    /// Leave the state as it is.
    Skip,
}

/// What does not change from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub assignment: Assignment,
    /// An order may take so many times what its worker's pace says,
    pub patience: u32,
    /// but always this long,
    pub grace: Duration,
    /// and never longer than this, also while the pace is unknown.
    pub deadline: Duration,
    /// Loading compiles, which takes its time.
    pub loading: Duration,
    /// Most shards that a worker runs in one launch: what else it has waits, where a program allows it; elsewhere others have it,
    /// if there are enough of them.
    pub shards_at_once: Option<usize>,
    /// Only the first worker that is there commits; the others are then told its state.
    pub one_updates: bool,
}

/// A step that somebody wants.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub program: usize,
    /// Samples of each shard; none is empty.
    pub sizes: Vec<usize>,
    pub segments: usize,
    /// Whether the last segment changes the state, so that it must not run twice.
    pub changes_state: bool,
    /// There is one cut at most, and what follows needs nothing of a sample: a worker may run several groups one after another.
    /// What it said in the segment before the cut counts even if it is lost.
    pub few_at_once: bool,
    /// Only make ready for it.
    pub load_only: bool,
    /// Let somebody run a block of shards again: this shard's.
    pub audit: Option<usize>,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A step is wanted. Only between steps.
    Begin(Job),
    /// These are asked something else than to work, and have so long. Only between steps, and after [`Event::GiveUp`].
    Ask { workers: Vec<usize>, within: Duration },
    /// A worker answered.
    Answer { worker: usize, ticket: u64, heard: Heard },
    /// The sums that [`Action::Sum`] asked for are there.
    Summed,
    /// The caller has decided.
    Decided(Verdict),
    /// What one worker has changed is known to all, see [`Policy::one_updates`].
    Spread,
    /// The step cannot be done: a sum is not finite, a plan is refused.
    GiveUp,
    /// A worker is there and has the state. Only between steps.
    Joined(usize),
    /// A worker is to leave. Only between steps.
    Reject(usize),
    /// Time has passed. At any moment, as often as one likes.
    Tick,
}

/// What a worker said to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is done and took its device and driver so long.
    Done(Duration),
    /// It is done, and a sum that stayed on its device is not finite: the step is given up.
    NotFinite,
    /// It cannot be loaded, by anyone like it.
    Refused,
    /// Its device has no memory for that.
    NoMemory,
    /// It failed.
    Failed,
}

/// Shards that a worker runs in one launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShardGroup {
    pub shards: Range<usize>,
    pub run: Arc<Run>,
    /// Its first row of the batch.
    pub first_row: usize,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Tell a worker to load.
    Load { worker: usize, ticket: u64, program: usize, run: Arc<Run> },
    /// Tell a worker to run segments of a group.
    Run { worker: usize, ticket: u64, program: usize, group: ShardGroup, segments: Range<usize> },
    /// Tell a worker to run a group that somebody else has run, up to the last cut, for its blocks.
    Audit { worker: usize, ticket: u64, group: ShardGroup, of: usize },
    /// Compare what the audit gave with what was kept.
    Compare { worker: usize, shards: Range<usize> },
    /// Tell a worker to run its group up to the last cut, with the sums that are known, so that it can commit.
    Refresh { worker: usize, ticket: u64, group: ShardGroup },
    /// Ask a worker what [`Event::Ask`] was for.
    Ask { worker: usize, ticket: u64 },
    /// All that were asked have answered, or have left.
    Heard,
    /// What the worker said counts: keep it.
    Keep { worker: usize, shards: Range<usize>, segments: Range<usize> },
    /// The step starts again: forget what was kept of it.
    Restart,
    /// Sum the blocks of a cut.
    Sum { cut: usize, shards: usize, leaves: usize },
    /// Ask the caller. Once a step.
    Decide,
    /// Read the state of this worker and write it to the others.
    Spread { from: usize },
    /// Let go of a worker: it failed, or is late.
    Leave { worker: usize, loss: Loss },
    /// The step is over. `shares`: the shards and samples of each who took part.
    End { committed: bool, shares: BTreeMap<usize, (usize, usize)> },
    /// The step is over, as [`Event::GiveUp`] wanted.
    GivenUp,
    /// Nobody is left.
    NoneLeft,
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    policy: Policy,
    workers: Workers,
    steps: u64,
    step: Option<Step>,
    asking: bool,
    out: Vec<Action>,
}

impl Scheduler {
    pub fn new(workers: usize, policy: Policy) -> Self {
        let workers = Workers::new(workers, policy);
        Self { policy, workers, steps: 0, step: None, asking: false, out: Vec::new() }
    }

    /// Those that have not left, in order.
    pub fn present(&self) -> Vec<usize> {
        self.workers.present()
    }

    /// When [`Event::Tick`] is due at the latest: never while nobody owes an answer.
    pub fn due(&self) -> Option<Duration> {
        self.workers.due()
    }

    /// Takes an event; what to do about it, in order.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Begin(job) => {
                let number = self.steps;
                self.steps += u64::from(!job.load_only);
                self.step = Some(Step::new(job, number));
            }
            Event::Ask { workers, within } => {
                self.asking = true;
                for worker in workers {
                    let ticket = self.workers.order(now, worker, Task::Asked, within);
                    self.out.extend(ticket.map(|ticket| Action::Ask { worker, ticket }));
                }
            }
            // Late, twice, or from one that left: then nobody waits for it, and it does not count.
            Event::Answer { worker, ticket, heard } => {
                if let Some(order) = self.workers.close(worker, ticket) {
                    self.answered(now, worker, order, heard);
                }
            }
            Event::Joined(worker) => self.workers.join(worker),
            Event::Reject(worker) => {
                self.workers.leave(worker);
                self.out.push(Action::Leave { worker, loss: Loss::Failed });
            }
            Event::Tick => {}
            Event::Summed => {
                if let Some(step) = &mut self.step {
                    step.summed(&self.policy, &self.workers);
                }
            }
            Event::Decided(verdict) => {
                if let Some(step) = &mut self.step {
                    step.decided(verdict, &self.policy, &self.workers);
                }
            }
            Event::Spread => {
                if let Some(step) = &mut self.step {
                    step.spread();
                }
            }
            Event::GiveUp => {
                if let Some(step) = &mut self.step {
                    step.phase = Phase::GiveUp;
                }
            }
        }
        for (worker, order, loss) in self.workers.overdue(now) {
            self.lost(worker, order, loss);
        }
        self.advance(now);
        std::mem::take(&mut self.out)
    }

    fn answered(&mut self, now: Duration, worker: usize, order: Order, heard: Heard) {
        let spent = match heard {
            // No longer than it had the order, by a clock that stands still where the process is stopped.
            Heard::Done(spent) => spent.min(now.saturating_sub(order.since)),
            Heard::Refused | Heard::NoMemory if self.lower_limit(worker, &order.task) => return,
            Heard::Refused => {
                match &mut self.step {
                    Some(step) => step.phase = Phase::GiveUp,
                    None => self.lost(worker, order, Loss::Failed),
                }
                return;
            }
            Heard::Failed | Heard::NoMemory => return self.lost(worker, order, Loss::Failed),
            Heard::NotFinite => {
                if let (Some(step), Task::Run { group, segments }) = (&mut self.step, order.task) {
                    self.out.push(Action::Keep { worker, shards: group.shards, segments });
                    step.phase = Phase::GiveUp;
                }
                return;
            }
        };
        let Some(step) = &mut self.step else { return };
        match order.task {
            Task::Load { program, run } => self.workers.loaded(worker, program, run),
            Task::Run { group, segments } => {
                self.workers.loaded(worker, step.job.program, Arc::clone(&group.run));
                // Whoever will start again, or not at all, has no use for it.
                if !matches!(step.phase, Phase::Restart | Phase::GiveUp) {
                    let action =
                        Action::Keep { worker, shards: group.shards.clone(), segments: segments.clone() };
                    self.out.push(action);
                    step.ran(worker, group, &segments, spent);
                }
            }
            Task::Audit(group) => {
                self.workers.loaded(worker, step.job.program, Arc::clone(&group.run));
                if step.phase == Phase::Audit {
                    self.out.push(Action::Compare { worker, shards: group.shards });
                    step.refresh(now, worker, &mut self.workers, &mut self.out);
                }
            }
            Task::Refresh => {}
            Task::Asked => {}
        }
    }

    /// A worker that cannot load so many shards goes on with as many as it could before: then the shards are given out anew. False
    /// if it could not, or if nobody has room for the others.
    fn lower_limit(&mut self, worker: usize, task: &Task) -> bool {
        let (Some(step), Task::Load { program, run }) = (&mut self.step, task) else { return false };
        let others = if step.job.few_at_once { 0 } else { step.job.sizes.len() };
        let lowered = self.workers.lower_limit(worker, *program, run.sizes.len(), others);
        if lowered && step.phase == Phase::Load {
            step.phase = Phase::Restart;
        }
        lowered
    }

    /// A worker leaves, and with it what it had not answered.
    fn lost(&mut self, worker: usize, order: Order, loss: Loss) {
        self.workers.leave(worker);
        self.out.push(Action::Leave { worker, loss });
        if let Some(step) = &mut self.step {
            step.lost(worker, order, &self.workers, &self.policy);
        }
    }

    /// Whatever can be done now, until somebody has to answer.
    fn advance(&mut self, now: Duration) {
        if self.asking && self.workers.is_idle() {
            self.asking = false;
            self.out.push(Action::Heard);
        }
        while let Some(step) = &mut self.step {
            if self.workers.present().is_empty() {
                self.step = None;
                self.out.push(Action::NoneLeft);
                return;
            }
            let goes_on = step.advance(now, &self.policy, &mut self.workers, &mut self.out);
            if step.phase == Phase::Over {
                self.step = None;
            }
            if !goes_on {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
