//! From phase to phase: what a step does next, and what it waits for.

use std::time::Duration;

use super::{Phase, Step};
use crate::schedule::workers::Workers;
use crate::schedule::{Action, Policy, Verdict};

impl Step {
    /// Does the next thing that can be done. Returns false when an event must come first.
    pub fn advance(
        &mut self,
        now: Duration,
        policy: &Policy,
        workers: &mut Workers,
        out: &mut Vec<Action>,
    ) -> bool {
        match self.phase {
            Phase::LayOut => {
                self.lay_out(policy, workers);
                self.enter(Phase::Load);
            }
            Phase::Load => return self.advance_load(now, policy, workers, out),
            Phase::Segment(segment) => return self.advance_segment(segment, now, policy, workers, out),
            Phase::Decide => {
                let asked = std::mem::replace(&mut self.asked, true);
                if !asked {
                    out.push(Action::Decide);
                }
                return false;
            }
            Phase::Commit => return self.advance_commit(now, policy, workers, out),
            Phase::Restart if workers.is_idle() => {
                out.push(Action::Restart);
                let fresh = Self::new(self.job.clone(), self.number);
                *self = Self { verdict: self.verdict, asked: self.asked, ..fresh };
            }
            Phase::GiveUp if workers.is_idle() => {
                out.push(Action::GivenUp { refused: self.refused });
                self.phase = Phase::Over;
            }
            Phase::End { committed } => {
                self.end(committed, workers, out);
                self.phase = Phase::Over;
                return false;
            }
            Phase::Sum(_) | Phase::Spread | Phase::Restart | Phase::GiveUp | Phase::Over => return false,
        }
        true
    }

    /// Orders loads. Once all are answered, the step begins, or ends if it was only to be loaded.
    fn advance_load(
        &mut self,
        now: Duration,
        policy: &Policy,
        workers: &mut Workers,
        out: &mut Vec<Action>,
    ) -> bool {
        self.load(now, policy, workers, out);
        if !workers.is_idle() {
            return false;
        }
        if self.job.load_only {
            self.phase = Phase::End { committed: false };
        } else {
            self.go_to(0, policy, workers);
        }
        true
    }

    /// Orders runs of a segment. Once all are answered, the host sums what the segment left.
    fn advance_segment(
        &mut self,
        segment: usize,
        now: Duration,
        policy: &Policy,
        workers: &mut Workers,
        out: &mut Vec<Action>,
    ) -> bool {
        self.run(now, workers, out);
        if !workers.is_idle() {
            return false;
        }
        if self.is_whole() {
            self.go_to(self.last(), policy, workers);
        } else {
            self.phase = Phase::Sum(segment);
            out.push(Action::Sum { cut: segment, shards: self.job.sizes.len(), leaves: self.leaves });
        }
        true
    }

    /// Orders the last segment. Once all have answered, the step ends, or the state of the one that updated
    /// is spread.
    fn advance_commit(
        &mut self,
        now: Duration,
        policy: &Policy,
        workers: &mut Workers,
        out: &mut Vec<Action>,
    ) -> bool {
        self.run(now, workers, out);
        if !workers.is_idle() {
            return false;
        }
        match workers.present().first() {
            Some(&from) if policy.one_updates && self.job.changes_state => {
                self.phase = Phase::Spread;
                out.push(Action::Spread { from });
            }
            _ => self.phase = Phase::End { committed: true },
        }
        true
    }

    /// Goes to a segment, or to what comes before the last one: the caller's verdict.
    pub(super) fn go_to(&mut self, segment: usize, policy: &Policy, workers: &Workers) {
        if segment < self.last() {
            return self.enter(Phase::Segment(segment));
        }
        match self.verdict {
            None => self.enter(Phase::Decide),
            Some(Verdict::Skip) => self.enter(Phase::End { committed: false }),
            Some(Verdict::Commit) => {
                self.enter(Phase::Commit);
                if policy.one_updates && self.job.changes_state {
                    let leader = workers.present().first().copied();
                    self.queues.retain(|&worker, _| Some(worker) == leader);
                }
            }
        }
    }

    /// Enters a phase and queues the work of each worker: at first what it was assigned, later what its
    /// memory holds.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        let begins = match phase {
            Phase::Load | Phase::Segment(0) => true,
            Phase::Commit => self.last() == 0,
            _ => false,
        };
        self.queues = if begins {
            self.layout.iter().map(|(&worker, groups)| (worker, groups.iter().cloned().collect())).collect()
        } else {
            self.holds.iter().map(|(&worker, group)| (worker, [group.shards.clone()].into())).collect()
        };
    }
}
