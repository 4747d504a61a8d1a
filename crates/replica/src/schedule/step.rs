//! A step: which phase it is in, who runs what, what comes next.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::{Run, tree};

use super::crew::{Crew, Order, Task};
use super::{Action, Job, Piece, Policy, Verdict};

/// Where a step is. `README.md` has the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Shards are to be given to workers.
    LayOut,
    /// Plans are loaded.
    Load,
    /// This segment runs; where one worker has everything, all up to the last.
    Segment(usize),
    /// The host sums what this segment left.
    Sum(usize),
    /// Somebody runs again what somebody else has run; then its own again, so that it can commit.
    Audit,
    /// The caller is asked.
    Decide,
    /// The last segment runs.
    Commit,
    /// The others are told what one has changed.
    Spread,
    /// Somebody was lost: once all others have answered, it starts again.
    Restart,
    /// It cannot be done: once all have answered, it is over.
    GiveUp,
    /// It is done; whether it changed something.
    End { committed: bool },
    /// Nothing is left to do.
    Over,
}

#[derive(Debug)]
pub(super) struct Step {
    pub job: Job,
    pub phase: Phase,
    pub number: u64,
    verdict: Option<Verdict>,
    /// Leaves of the sums over shards: the shards, or one more where that one is a zero.
    leaves: usize,
    /// Who is to run what from the start of the step.
    layout: BTreeMap<usize, Vec<Range<usize>>>,
    /// What is not yet begun in this phase, by whom it is to be run.
    queues: BTreeMap<usize, VecDeque<Range<usize>>>,
    /// What each worker ran last: its memory has what later segments need.
    holds: BTreeMap<usize, Piece>,
    /// Who ran which shards, by the first of them.
    ran: BTreeMap<usize, (usize, Range<usize>)>,
    spent: BTreeMap<usize, Duration>,
    audited: bool,
    /// The caller is asked once, however often the step starts again.
    asked: bool,
}

impl Step {
    pub fn new(job: Job, number: u64) -> Self {
        Self {
            leaves: job.sizes.len(),
            job,
            phase: Phase::LayOut,
            number,
            verdict: None,
            layout: BTreeMap::new(),
            queues: BTreeMap::new(),
            holds: BTreeMap::new(),
            ran: BTreeMap::new(),
            spent: BTreeMap::new(),
            audited: false,
            asked: false,
        }
    }

    /// Does what can be done; false when somebody has to say something first.
    pub fn advance(
        &mut self,
        now: Duration,
        policy: &Policy,
        crew: &mut Crew,
        out: &mut Vec<Action>,
    ) -> bool {
        match self.phase {
            Phase::LayOut => {
                self.lay_out(policy, crew);
                self.enter(Phase::Load);
            }
            Phase::Load => {
                self.load(now, policy, crew, out);
                if !crew.is_idle() {
                    return false;
                }
                if self.job.load_only {
                    self.phase = Phase::End { committed: false };
                } else {
                    self.go_to(0, policy, crew);
                }
            }
            Phase::Segment(segment) => {
                self.run(now, crew, out);
                if !crew.is_idle() {
                    return false;
                }
                if self.is_whole() {
                    self.go_to(self.last(), policy, crew);
                } else {
                    self.phase = Phase::Sum(segment);
                    out.push(Action::Sum { cut: segment, shards: self.job.sizes.len(), leaves: self.leaves });
                }
            }
            Phase::Audit => {
                if !crew.is_idle() || self.audit(now, crew, out) {
                    return false;
                }
                self.go_to(self.last(), policy, crew);
            }
            Phase::Decide => {
                let asked = std::mem::replace(&mut self.asked, true);
                if !asked {
                    out.push(Action::Decide);
                }
                return false;
            }
            Phase::Commit => {
                self.run(now, crew, out);
                if !crew.is_idle() {
                    return false;
                }
                match crew.present().first() {
                    Some(&from) if policy.one_updates && self.job.changes_state => {
                        self.phase = Phase::Spread;
                        out.push(Action::Spread { from });
                    }
                    _ => self.phase = Phase::End { committed: true },
                }
            }
            Phase::Restart if crew.is_idle() => {
                out.push(Action::Restart);
                let fresh = Self::new(self.job.clone(), self.number);
                *self = Self { verdict: self.verdict, asked: self.asked, ..fresh };
            }
            Phase::GiveUp if crew.is_idle() => {
                out.push(Action::GivenUp);
                self.phase = Phase::Over;
            }
            Phase::End { committed } => {
                self.end(committed, crew, out);
                self.phase = Phase::Over;
                return false;
            }
            Phase::Sum(_) | Phase::Spread | Phase::Restart | Phase::GiveUp | Phase::Over => return false,
        }
        true
    }

    fn last(&self) -> usize {
        self.job.segments.saturating_sub(1)
    }

    /// The way from segment to segment.
    fn go_to(&mut self, segment: usize, policy: &Policy, crew: &Crew) {
        if segment < self.last() {
            return self.enter(Phase::Segment(segment));
        }
        let due = self.job.audit.is_some() && !self.audited && !self.is_whole() && crew.present().len() > 1;
        match self.verdict {
            _ if due && self.last() > 0 => self.enter(Phase::Audit),
            None => self.enter(Phase::Decide),
            Some(Verdict::Skip) => self.enter(Phase::End { committed: false }),
            Some(Verdict::Commit) => {
                self.enter(Phase::Commit);
                if policy.one_updates && self.job.changes_state {
                    let leader = crew.present().first().copied();
                    self.queues.retain(|&worker, _| Some(worker) == leader);
                }
            }
        }
    }

    /// What each worker has to do in a phase: first what it was given, later what it has.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        let begins = match phase {
            Phase::Load | Phase::Segment(0) => true,
            Phase::Commit => self.last() == 0,
            _ => false,
        };
        self.queues = if begins {
            self.layout.iter().map(|(&worker, pieces)| (worker, pieces.iter().cloned().collect())).collect()
        } else {
            self.holds.iter().map(|(&worker, piece)| (worker, [piece.shards.clone()].into())).collect()
        };
    }

    /// Gives the shards to the workers. One without shards takes part if it has to commit. Where others take part, the one
    /// that happens to have all shards must give its sums away: its run is not whole, beside a shard that nobody has. A
    /// missing shard and a shard of zeros are the same, so no bit changes.
    fn lay_out(&mut self, policy: &Policy, crew: &mut Crew) {
        let present = crew.present();
        let Job { program, pieces: in_pieces, .. } = self.job;
        let ranges = crew.assign(policy.assignment, program, &self.job.sizes, in_pieces, self.number);
        let leader = present.first().copied();
        let commits = |worker| self.job.changes_state && (!policy.one_updates || Some(worker) == leader);
        let at_once = |worker| if in_pieces { crew.at_once(worker, program) } else { usize::MAX };
        self.layout = present
            .into_iter()
            .zip(ranges)
            .filter(|(worker, range)| !range.is_empty() || commits(*worker))
            .map(|(worker, range)| (worker, pieces(range, at_once(worker))))
            .collect();
        let everything = 0..self.job.sizes.len();
        let has_all = self.layout.values().flatten().any(|piece| *piece == everything);
        self.leaves = self.job.sizes.len() + usize::from(self.layout.len() > 1 && has_all);
    }

    /// One worker has everything in one piece: sums stay on its device.
    fn is_whole(&self) -> bool {
        let mut all = self.layout.values().flatten();
        self.leaves == self.job.sizes.len()
            && all.next().is_some_and(|p| p.len() == self.leaves)
            && all.next().is_none()
    }

    fn piece(&self, shards: Range<usize>) -> Piece {
        let first = if shards.is_empty() { 0 } else { shards.start };
        let sizes = self.job.sizes[shards.clone()].to_vec();
        let first_row = self.job.sizes[..first].iter().sum();
        Piece { shards, run: Arc::new(Run { first, sizes, shards: self.leaves }), first_row }
    }

    fn load(&mut self, now: Duration, policy: &Policy, crew: &mut Crew, out: &mut Vec<Action>) {
        let program = self.job.program;
        for worker in crew.free() {
            while let Some(shards) = self.queues.get_mut(&worker).and_then(VecDeque::pop_front) {
                let run = self.piece(shards).run;
                if crew.is_loaded(worker, program, &run) {
                    continue;
                }
                let within = policy.deadline.max(policy.loading);
                let task = Task::Load { program, run: Arc::clone(&run) };
                let ticket = crew.order(now, worker, task, within);
                out.extend(ticket.map(|ticket| Action::Load { worker, ticket, program, run }));
                break;
            }
        }
    }

    /// Gives everybody who is free something to do, if there is.
    fn run(&mut self, now: Duration, crew: &mut Crew, out: &mut Vec<Action>) {
        let segments = match self.phase {
            Phase::Segment(first) if self.is_whole() => first..self.last(),
            Phase::Segment(segment) => segment..segment + 1,
            _ => self.last()..self.last() + 1,
        };
        for worker in crew.free() {
            if let Some(shards) = self.queues.get_mut(&worker).and_then(VecDeque::pop_front) {
                self.order(now, worker, shards, &segments, crew, out);
            }
        }
        for worker in crew.free() {
            if let Some(shards) = self.take_over(now, worker, crew) {
                self.order(now, worker, shards, &segments, crew, out);
            }
        }
    }

    fn order(
        &mut self,
        now: Duration,
        worker: usize,
        shards: Range<usize>,
        segments: &Range<usize>,
        crew: &mut Crew,
        out: &mut Vec<Action>,
    ) {
        let piece = self.piece(shards);
        let within = crew.within(worker, self.job.program, &piece.run);
        let task = Task::Run { piece: piece.clone(), segments: segments.clone() };
        let ticket = crew.order(now, worker, task, within);
        let (program, segments) = (self.job.program, segments.clone());
        out.extend(ticket.map(|ticket| Action::Run { worker, ticket, program, piece, segments }));
    }

    /// A piece that waits for the worker that will be done last, if `worker` would be done with it before that one.
    fn take_over(&mut self, now: Duration, worker: usize, crew: &Crew) -> Option<Range<usize>> {
        if !self.job.pieces || crew.is_pinned() || self.phase != Phase::Segment(0) {
            return None;
        }
        let seconds = |worker: usize, shards: &Range<usize>| {
            crew.cost(worker, self.job.program).seconds(self.job.sizes[shards.clone()].iter().sum())
        };
        let left = |&victim: &usize| {
            let waiting: f64 = self.queues[&victim].iter().map(|piece| seconds(victim, piece)).sum();
            let current = crew.current(victim).map_or(0.0, |order| {
                let Task::Run { piece, .. } = &order.task else { return 0.0 };
                let (expected, passed) =
                    (seconds(victim, &piece.shards), now.saturating_sub(order.since).as_secs_f64());
                // Past its time, it will probably take as long again.
                if passed < expected { expected - passed } else { passed }
            });
            waiting + current
        };
        let behind = self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&victim, _)| victim);
        let victim = behind.max_by(|a, b| left(a).total_cmp(&left(b)))?;
        let piece = self.queues[&victim].back()?;
        let takes =
            seconds(worker, piece) < left(&victim) && piece.len() <= crew.at_once(worker, self.job.program);
        if takes { self.queues.get_mut(&victim)?.pop_back() } else { None }
    }

    /// What a worker ran.
    pub fn ran(&mut self, worker: usize, piece: Piece, segments: &Range<usize>, spent: Duration) {
        if segments.start == 0 && !piece.shards.is_empty() {
            self.ran.insert(piece.shards.start, (worker, piece.shards.clone()));
        }
        // The optimizer takes as long for few samples as for many.
        if segments.start < self.last() || self.last() == 0 {
            *self.spent.entry(worker).or_default() += spent;
        }
        self.holds.insert(worker, piece);
    }

    pub fn summed(&mut self, policy: &Policy, crew: &Crew) {
        if let Phase::Sum(segment) = self.phase {
            self.go_to(segment + 1, policy, crew);
        }
    }

    pub fn decided(&mut self, verdict: Verdict, policy: &Policy, crew: &Crew) {
        if self.phase == Phase::Decide {
            self.verdict = Some(verdict);
            self.go_to(self.last(), policy, crew);
        }
    }

    pub fn spread(&mut self) {
        if self.phase == Phase::Spread {
            self.phase = Phase::End { committed: true };
        }
    }

    /// Asks for the audit; false if there is nothing to ask for, or no more.
    fn audit(&mut self, now: Duration, crew: &mut Crew, out: &mut Vec<Action>) -> bool {
        if std::mem::replace(&mut self.audited, true) {
            return false;
        }
        let shard = self.job.audit.unwrap_or(0) % self.job.sizes.len().max(1);
        let Some((of, held)) = self.ran.values().find(|(_, held)| held.contains(&shard)).cloned() else {
            return false;
        };
        let block = tree::blocks(held, self.leaves).into_iter().find(|block| block.contains(&shard));
        let others = crew.present().into_iter().filter(|&w| w != of && self.holds.contains_key(&w));
        let (before, after): (Vec<usize>, Vec<usize>) = others.partition(|&w| w < of);
        let (Some(block), Some(&worker)) = (block, after.first().or(before.first())) else { return false };
        let piece = self.piece(block);
        let within = crew.within(worker, self.job.program, &piece.run);
        let ticket = crew.order(now, worker, Task::Audit(piece.clone()), within);
        out.extend(ticket.map(|ticket| Action::Audit { worker, ticket, piece, of }));
        ticket.is_some()
    }

    /// Whoever audited has its own piece no longer: it runs that again.
    pub fn refresh(&self, now: Duration, worker: usize, crew: &mut Crew, out: &mut Vec<Action>) {
        let Some(piece) = self.holds.get(&worker).cloned() else { return };
        let within = crew.within(worker, self.job.program, &piece.run);
        let ticket = crew.order(now, worker, Task::Refresh, within);
        out.extend(ticket.map(|ticket| Action::Refresh { worker, ticket, piece }));
    }

    /// A worker left, `order` unanswered.
    pub fn lost(&mut self, worker: usize, order: Order, crew: &Crew, policy: &Policy) {
        let was_leader = policy.one_updates && crew.present().first().is_none_or(|&first| worker < first);
        let queue = self.queues.remove(&worker).unwrap_or_default();
        self.holds.remove(&worker);
        match self.phase {
            Phase::Segment(0) if self.job.pieces && !was_leader && !crew.present().is_empty() => {
                let begun = if let Task::Run { piece, .. } = order.task { Some(piece.shards) } else { None };
                for shards in begun.into_iter().chain(queue).filter(|shards| !shards.is_empty()) {
                    self.share(shards, crew);
                }
            }
            Phase::Commit if self.job.changes_state && !was_leader => {}
            Phase::Spread if !was_leader => {}
            Phase::GiveUp | Phase::End { .. } | Phase::Over => {}
            _ => self.phase = Phase::Restart,
        }
    }

    /// Shards of somebody who left, for those that stay.
    fn share(&mut self, shards: Range<usize>, crew: &Crew) {
        let present = crew.present();
        let costs: Vec<_> = present.iter().map(|&w| crew.known_cost(w, self.job.program)).collect();
        let sizes = &self.job.sizes[shards.clone()];
        let most = vec![usize::MAX; present.len()];
        let parts = super::assign::assign(super::Assignment::Speed, sizes, &costs, &most, None, 1);
        for (worker, part) in present.into_iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            let part = shards.start + part.start..shards.start + part.end;
            self.queues
                .entry(worker)
                .or_default()
                .extend(pieces(part, crew.at_once(worker, self.job.program)));
        }
    }

    fn end(&mut self, committed: bool, crew: &mut Crew, out: &mut Vec<Action>) {
        let mut shares: BTreeMap<usize, (usize, usize)> = self.holds.keys().map(|&w| (w, (0, 0))).collect();
        for (worker, shards) in self.ran.values() {
            let share = shares.entry(*worker).or_default();
            share.0 += shards.len();
            share.1 += self.job.sizes[shards.clone()].iter().sum::<usize>();
        }
        for worker in crew.present() {
            if let (Some((_, rows)), Some(spent)) = (shares.get(&worker), self.spent.get(&worker)) {
                crew.saw(worker, self.job.program, *rows, *spent);
            }
        }
        out.push(Action::End { committed, shares });
    }
}

/// A run of shards in pieces of `at_once` at most. Several end at multiples of it, so that few subtrees are cut.
fn pieces(range: Range<usize>, at_once: usize) -> Vec<Range<usize>> {
    if range.len() <= at_once {
        return vec![range];
    }
    let mut pieces = vec![];
    let mut first = range.start;
    while first < range.end {
        let end = (first / at_once).saturating_add(1).saturating_mul(at_once).min(range.end);
        pieces.push(first..end);
        first = end;
    }
    pieces
}
