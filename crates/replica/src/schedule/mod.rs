//! The scheduler as a state machine: events go in, actions come out, and the time is an argument. It has no
//! threads, no clock and no devices.
//!
//! `README.md` beside this file states its invariants, and `tests` checks them.

mod assign;
mod audits;
pub(crate) mod pace;
mod step;
mod workers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::Run;

pub use assign::Assignment;
pub(crate) use audits::AuditSchedule;
pub use audits::{AuditReport, Audits};
use step::{Phase, Step};
pub(crate) use workers::Loss;
use workers::{Order, Task, Workers};

/// What the caller of a step decides before the step commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The last segment runs, which changes the state.
    Commit,
    /// The state stays as it is.
    Skip,
}

/// The options of the scheduler, which do not change from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub assignment: Assignment,
    /// How many times longer than its worker's pace says an order may take.
    pub patience: u32,
    /// The shortest time that an order may take, whatever the pace.
    pub grace: Duration,
    /// The longest time that an order may take, also while the pace is unknown.
    pub deadline: Duration,
    /// The time that loading, which compiles, may take in addition.
    pub loading: Duration,
    /// The most shards that a worker runs at once. Its other shards wait where the program allows that;
    /// elsewhere they are assigned to other workers, if there are enough.
    pub shards_at_once: Option<usize>,
    /// Whether only the first present worker commits, and the others then copy its state.
    pub one_updates: bool,
}

/// A step that the coordinator wants to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub program: usize,
    /// The number of samples of each shard of this machine; no shard is empty.
    pub sizes: Vec<usize>,
    /// Where these shards are in the batch, if other machines have others.
    pub share: Option<Share>,
    pub segments: usize,
    /// Whether the last segment changes the state, so that it must not run twice.
    pub changes_state: bool,
    /// Whether a worker may run its shards a few at once: there is one cut at most, and what follows it needs
    /// nothing of a sample. Results of the segment before the cut then count even if the worker is lost
    /// later.
    pub few_at_once: bool,
    /// Whether to load the plans of the step only, and not to run it.
    pub load_only: bool,
    /// Which workers run the shards.
    pub roles: Roles,
    /// Whether digests of all blocks are kept, so that a step can be compared with the same step made again.
    pub audited: bool,
}

/// The place of a machine's shards in a batch that several machines share. Its sums always come to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The first shard.
    pub first: usize,
    /// The first sample of that shard.
    pub first_row: usize,
    /// The shards of the whole batch.
    pub all: usize,
}

/// Which workers run the shards of a step. The bytes of a step do not depend on it, which is what audits
/// compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Roles {
    /// All workers, as the policy assigns them.
    #[default]
    Usual,
    /// All workers, with shares as equal as shards allow, which stay the same as long as the workers do.
    Even,
    /// All workers, each with the shards that were last assigned to the one so many places before it: then
    /// another worker runs each shard than usual. Where one has no memory for them, the shards are assigned
    /// evenly, as far as the memory of each allows, to the workers in that order.
    Rotated(usize),
    /// One worker runs all shards, and its sums come to the host. The others only commit.
    Alone(usize),
}

/// An event that the scheduler handles.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A step begins. It occurs only between steps.
    Begin(Job),
    /// These workers get a request that is no part of a step, to be answered within so long. It occurs only
    /// between steps and after [`Event::GiveUp`].
    Ask { workers: Vec<usize>, within: Duration },
    /// A worker answered.
    Answer { worker: usize, ticket: u64, response: Response },
    /// The sums for which [`Action::Sum`] asked are computed.
    Summed,
    /// The caller has decided.
    Decided(Verdict),
    /// All workers have the state of the one that updated it, see [`Policy::one_updates`].
    Spread,
    /// The step cannot be done: a sum is not finite, or a plan is refused.
    GiveUp,
    /// Other machines were lost: the step starts again, with these shards of it here. The caller is asked for
    /// its verdict again.
    Moved { sizes: Vec<usize>, share: Option<Share> },
    /// A worker joins: at the start, or `late`, beside workers that the run was started with. It occurs only
    /// between steps.
    Joined { worker: usize, late: bool },
    /// A worker must leave. It occurs only between steps.
    Reject(usize),
    /// The only worker has made a step in flight of so many samples, in so much time. It occurs only between
    /// steps.
    Ran { worker: usize, program: usize, samples: usize, spent: Duration },
    /// A worker has dropped plans to make room for others: it loads them again before it runs them.
    Unloaded { worker: usize, plans: Vec<(usize, Arc<Run>)> },
    /// These programs never run again. It occurs only between steps.
    Forgotten(Range<usize>),
    /// Time has passed. It may occur at any moment and any number of times.
    Tick,
}

/// A worker's answer to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The order is done; device and driver took so long.
    Done(Duration),
    /// The order is done, and a sum that stayed on the device is not finite: the step is given up.
    NotFinite,
    /// The plan cannot be loaded by any device of this kind.
    Refused,
    /// The device has no memory for the order.
    NoMemory,
    /// The order was a diagnostic, which the device cannot do, for lack of memory or because of a limit. It
    /// is over, and the worker stays.
    Cannot,
    /// The worker failed.
    Failed,
}

/// A group of shards that a worker runs at once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShardGroup {
    pub shards: Range<usize>,
    pub run: Arc<Run>,
    /// The first row of the group in the batch.
    pub first_row: usize,
}

/// An action that the scheduler wants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Order a worker to load a plan.
    Load { worker: usize, ticket: u64, program: usize, run: Arc<Run> },
    /// Order a worker to run segments of a group of shards.
    Run { worker: usize, ticket: u64, program: usize, group: ShardGroup, segments: Range<usize> },
    /// Send a worker the request of [`Event::Ask`].
    Ask { worker: usize, ticket: u64 },
    /// All workers that were asked have answered or left.
    AllAnswered,
    /// Keep the results of the worker: they count.
    Keep { worker: usize, shards: Range<usize>, segments: Range<usize> },
    /// Forget all results of the step, which starts again.
    Restart,
    /// Sum the blocks of a cut.
    Sum { cut: usize, shards: usize, leaves: usize },
    /// Ask the caller for the verdict. This happens once a step.
    Decide,
    /// Read the state of this worker and write it to the others.
    Spread { from: usize },
    /// Dismiss a worker, which failed or is late.
    Leave { worker: usize, loss: Loss },
    /// The step is over. `shares` has the shards and samples of each worker that took part.
    End { committed: bool, shares: BTreeMap<usize, (usize, usize)> },
    /// The step is given up, and all workers have answered. `refused` is the worker that refused a plan, if
    /// that is why.
    GivenUp { refused: Option<usize> },
    /// No worker is left.
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

    /// Returns the workers that have not left, in order.
    pub fn present(&self) -> Vec<usize> {
        self.workers.present()
    }

    /// Returns the latest time at which an [`Event::Tick`] is due; none while no worker owes an answer.
    pub fn due(&self) -> Option<Duration> {
        self.workers.due()
    }

    /// Returns the only worker with all shards of a step in one group, if it has their plan loaded, and how
    /// long the step may take there. Such a step may be in flight while the next one is submitted.
    pub fn whole(&self, job: &Job) -> Option<(usize, ShardGroup, Duration)> {
        let [worker] = self.workers.present()[..] else { return None };
        let at_once = if job.few_at_once { self.workers.at_once(worker, job.program) } else { usize::MAX };
        let is_usual = job.share.is_none() && job.roles == Roles::Usual && !self.policy.one_updates;
        let run = Arc::new(Run::whole(&job.sizes));
        if !is_usual || job.sizes.len() > at_once || !self.workers.is_loaded(worker, job.program, &run) {
            return None;
        }
        let within = self.workers.within(worker, job.program, &run);
        Some((worker, ShardGroup { shards: 0..job.sizes.len(), run, first_row: 0 }, within))
    }

    /// Takes an event. Returns the actions that follow, in order.
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
            // An answer that is late, repeated, or from a worker that left has no open order and does not
            // count.
            Event::Answer { worker, ticket, response } => {
                if let Some(order) = self.workers.close(worker, ticket) {
                    self.answered(now, worker, order, response);
                }
            }
            Event::Joined { worker, late } => self.workers.join(worker, late),
            Event::Reject(worker) => {
                self.workers.leave(worker);
                self.out.push(Action::Leave { worker, loss: Loss::Failed });
            }
            Event::Ran { worker, program, samples, spent } => {
                self.workers.saw(worker, program, samples, spent);
            }
            Event::Unloaded { worker, plans } => {
                self.workers.unloaded(worker, &plans);
                if let Some(step) = &mut self.step {
                    step.unloaded(worker, &plans);
                }
            }
            Event::Forgotten(programs) => self.workers.forget(&programs),
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
            Event::Moved { sizes, share } => {
                if let Some(step) = &mut self.step {
                    step.moved(sizes, share);
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

    fn answered(&mut self, now: Duration, worker: usize, order: Order, response: Response) {
        let spent = match response {
            // At most the time since the order, by a clock that stands still while the process is stopped.
            Response::Done(spent) => Some(spent.min(now.saturating_sub(order.since))),
            Response::Cannot => None,
            Response::Refused | Response::NoMemory if self.lower_limit(worker, &order.task) => return,
            Response::Refused => {
                // The run has gone on without a worker that joined it late, and does so again.
                let is_needed = !self.workers.is_late(worker) || self.workers.present().len() == 1;
                match &mut self.step {
                    Some(step) if is_needed => {
                        step.phase = Phase::GiveUp;
                        step.refused = Some(worker);
                    }
                    _ => self.lost(worker, order, Loss::Failed),
                }
                return;
            }
            Response::Failed | Response::NoMemory => return self.lost(worker, order, Loss::Failed),
            Response::NotFinite => {
                if let (Some(step), Task::Run { group, segments }) = (&mut self.step, order.task) {
                    self.out.push(Action::Keep { worker, shards: group.shards, segments });
                    step.phase = Phase::GiveUp;
                }
                return;
            }
        };
        let Some(step) = &mut self.step else { return };
        match order.task {
            Task::Load { program, run } => {
                if spent.is_some() {
                    self.workers.loaded(worker, program, run);
                }
            }
            Task::Run { group, segments } => {
                if spent.is_some() {
                    self.workers.loaded(worker, step.job.program, Arc::clone(&group.run));
                }
                // A step that starts again or is given up has no use for the results.
                if !matches!(step.phase, Phase::Restart | Phase::GiveUp) {
                    let action =
                        Action::Keep { worker, shards: group.shards.clone(), segments: segments.clone() };
                    self.out.push(action);
                    step.ran(worker, group, &segments, spent);
                }
            }
            Task::Asked => {}
        }
    }

    /// Limits a worker that cannot load so many shards to the number that it could load before; the shards
    /// are then assigned anew, or run in smaller groups where the step is under way. Returns false if it
    /// could load none before, or if the others have no memory for the rest.
    fn lower_limit(&mut self, worker: usize, task: &Task) -> bool {
        let Some(step) = &mut self.step else { return false };
        let (program, run) = match task {
            Task::Load { program, run } => (*program, run),
            // Shards of a worker that was lost come without an order to load their plan.
            Task::Run { group, .. } if step.may_divide() => (step.job.program, &group.run),
            _ => return false,
        };
        // Nobody else runs the shards of a worker that runs them alone. A plan that was loaded had its
        // memory.
        if step.job.roles == Roles::Alone(worker) || self.workers.is_loaded(worker, program, run) {
            return false;
        }
        let others = if step.job.few_at_once { 0 } else { step.job.sizes.len() };
        let lowered = self.workers.lower_limit(worker, (program, step.job.roles), run.sizes.len(), others);
        match (task, step.phase) {
            (Task::Load { .. }, Phase::Load) if lowered => step.phase = Phase::Restart,
            (Task::Run { group, .. }, Phase::Segment(0)) if lowered => {
                step.divide(worker, group.shards.clone(), &self.workers);
            }
            _ => {}
        }
        lowered
    }

    /// Removes a worker, together with its unanswered order.
    fn lost(&mut self, worker: usize, order: Order, loss: Loss) {
        self.workers.leave(worker);
        self.out.push(Action::Leave { worker, loss });
        if let Some(step) = &mut self.step {
            step.lost(worker, order, &self.workers, &self.policy);
        }
    }

    /// Advances the step until an event must come first.
    fn advance(&mut self, now: Duration) {
        if self.asking && self.workers.is_idle() {
            self.asking = false;
            self.out.push(Action::AllAnswered);
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
