//! A step as the scheduler knows it: its phase, who runs which shards, and what comes next.

mod phases;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::Run;

use super::workers::{Order, Task, Workers};
use super::{Action, Assignment, Job, Policy, Roles, ShardGroup, Share, Verdict};

/// The phase of a step. `README.md` has a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Shards are assigned to workers.
    LayOut,
    /// Workers load their plans.
    Load,
    /// This segment runs; where one worker has all shards, all segments but the last one run.
    Segment(usize),
    /// The host sums the buckets of this segment's cut.
    Sum(usize),
    /// The caller is asked for the verdict.
    Decide,
    /// The last segment runs.
    Commit,
    /// The state of the one worker that updated is copied to the others.
    Spread,
    /// A worker was lost: once all others have answered, the step starts again.
    Restart,
    /// The step cannot be done: once all have answered, it is over.
    GiveUp,
    /// The step is done; `committed` says whether it changed the state.
    End { committed: bool },
    /// Nothing is left to do.
    Over,
}

#[derive(Debug)]
pub(super) struct Step {
    pub job: Job,
    pub phase: Phase,
    pub number: u64,
    /// The worker that refused a plan, so that the step is given up.
    pub refused: Option<usize>,
    verdict: Option<Verdict>,
    /// The leaves of the sums over shards: the shards, or one more, which is zero.
    leaves: usize,
    /// The groups of shards of each worker from the start of the step.
    layout: BTreeMap<usize, Vec<Range<usize>>>,
    /// The groups that each worker has not yet begun in this phase.
    queues: BTreeMap<usize, VecDeque<Range<usize>>>,
    /// The group that each worker ran last: its memory has what later segments need.
    holds: BTreeMap<usize, ShardGroup>,
    /// The worker that ran each group of shards, by the first shard of the group.
    ran: BTreeMap<usize, (usize, Range<usize>)>,
    spent: BTreeMap<usize, Duration>,
    /// Whether the caller was asked: it is asked once, however often the step starts again.
    asked: bool,
}

impl Step {
    pub fn new(job: Job, number: u64) -> Self {
        Self {
            leaves: leaves(&job),
            job,
            phase: Phase::LayOut,
            number,
            refused: None,
            verdict: None,
            layout: BTreeMap::new(),
            queues: BTreeMap::new(),
            holds: BTreeMap::new(),
            ran: BTreeMap::new(),
            spent: BTreeMap::new(),
            asked: false,
        }
    }

    fn last(&self) -> usize {
        self.job.segments.saturating_sub(1)
    }

    /// Assigns the shards to the workers. A worker without shards takes part if it must commit. If one worker
    /// has all shards beside others that take part, its sums must come to the host: its run is then made part
    /// of a batch with one more shard, which is empty. A missing shard is a zero in every sum, so no bit
    /// changes.
    fn lay_out(&mut self, policy: &Policy, workers: &mut Workers) {
        let present = workers.present();
        let Job { program, few_at_once, .. } = self.job;
        let mut among = present.clone();
        if let Roles::Alone(worker) = self.job.roles
            && present.contains(&worker)
        {
            among = vec![worker];
        }
        let mut ranges = match self.job.sizes.is_empty() {
            true => BTreeMap::new(),
            false => {
                let is_even = self.job.roles == Roles::Even;
                let how = if is_even { Assignment::Even } else { policy.assignment };
                workers.assign(how, &self.job, among, self.number)
            }
        };
        if let Roles::Rotated(places) = self.job.roles {
            ranges = workers.rotated(&self.job, ranges, places);
        }
        let leader = present.first().copied();
        let commits = |worker| self.job.changes_state && (!policy.one_updates || Some(worker) == leader);
        let at_once = |worker| if few_at_once { workers.at_once(worker, program) } else { usize::MAX };
        self.layout = present
            .into_iter()
            .map(|worker| (worker, ranges.remove(&worker).unwrap_or_default()))
            .filter(|(worker, range)| !range.is_empty() || commits(*worker))
            .map(|(worker, range)| (worker, groups(range, at_once(worker))))
            .collect();
        let everything = 0..self.job.sizes.len();
        let is_all_of_the_batch = leaves(&self.job) == everything.len();
        let has_all = is_all_of_the_batch && self.layout.values().flatten().any(|group| *group == everything);
        let is_alone = matches!(self.job.roles, Roles::Alone(_));
        let is_shared = self.job.share.is_some();
        let shows_sums = is_shared || self.layout.len() > 1 || self.last() > 0 && is_alone;
        self.leaves = leaves(&self.job) + usize::from(shows_sums && has_all);
    }

    /// Returns whether one worker has all shards in one group: then the sums stay on its device.
    fn is_whole(&self) -> bool {
        let mut all = self.layout.values().flatten();
        self.job.share.is_none()
            && self.leaves == self.job.sizes.len()
            && all.next().is_some_and(|p| p.len() == self.leaves)
            && all.next().is_none()
    }

    fn group(&self, shards: Range<usize>) -> ShardGroup {
        let first = if shards.is_empty() { 0 } else { shards.start };
        let sizes = self.job.sizes[shards.clone()].to_vec();
        let mut first_row = self.job.sizes[..first].iter().sum();
        let mut first = first;
        if let Some(share) = self.job.share.filter(|_| !shards.is_empty()) {
            (first, first_row) = (share.first + first, share.first_row + first_row);
        }
        ShardGroup { shards, run: Arc::new(Run { first, sizes, shards: self.leaves }), first_row }
    }

    fn load(&mut self, now: Duration, policy: &Policy, workers: &mut Workers, out: &mut Vec<Action>) {
        let program = self.job.program;
        for worker in workers.free() {
            while let Some(shards) = self.queues.get_mut(&worker).and_then(VecDeque::pop_front) {
                let run = self.group(shards).run;
                if workers.is_loaded(worker, program, &run) {
                    continue;
                }
                let within = policy.deadline.max(policy.loading);
                let task = Task::Load { program, run: Arc::clone(&run) };
                let ticket = workers.order(now, worker, task, within);
                out.extend(ticket.map(|ticket| Action::Load { worker, ticket, program, run }));
                break;
            }
        }
    }

    /// A worker has dropped plans to make room for others. If they are plans of this step, it cannot have all
    /// of the step's plans loaded at once, and loads the rest when it runs them.
    pub fn unloaded(&mut self, worker: usize, plans: &[(usize, Arc<Run>)]) {
        let groups = self.layout.get(&worker).filter(|_| self.phase == Phase::Load);
        let mut own = groups.into_iter().flatten().map(|shards| self.group(shards.clone()).run);
        if own.any(|run| plans.contains(&(self.job.program, run))) {
            self.queues.remove(&worker);
        }
    }

    /// Orders every free worker to run its next group, or one that waits for another worker.
    fn run(&mut self, now: Duration, workers: &mut Workers, out: &mut Vec<Action>) {
        let segments = match self.phase {
            Phase::Segment(first) if self.is_whole() => first..self.last(),
            Phase::Segment(segment) => segment..segment + 1,
            _ => self.last()..self.last() + 1,
        };
        for worker in workers.free() {
            if let Some(shards) = self.queues.get_mut(&worker).and_then(VecDeque::pop_front) {
                self.order(now, worker, shards, &segments, workers, out);
            }
        }
        for worker in workers.free() {
            if let Some(shards) = self.take_over(now, worker, workers) {
                self.order(now, worker, shards, &segments, workers, out);
            }
        }
    }

    fn order(
        &mut self,
        now: Duration,
        worker: usize,
        shards: Range<usize>,
        segments: &Range<usize>,
        workers: &mut Workers,
        out: &mut Vec<Action>,
    ) {
        let group = self.group(shards);
        let within = workers.within(worker, self.job.program, &group.run);
        let task = Task::Run { group: group.clone(), segments: segments.clone() };
        let ticket = workers.order(now, worker, task, within);
        let (program, segments) = (self.job.program, segments.clone());
        out.extend(ticket.map(|ticket| Action::Run { worker, ticket, program, group, segments }));
    }

    /// Takes a group from the worker that will be done last, if `worker` would be done with it earlier.
    fn take_over(&mut self, now: Duration, worker: usize, workers: &Workers) -> Option<Range<usize>> {
        let is_usual = self.job.roles == Roles::Usual;
        if !self.job.few_at_once || !is_usual || workers.is_pinned() || self.phase != Phase::Segment(0) {
            return None;
        }
        let seconds = |worker: usize, shards: &Range<usize>| {
            workers.cost(worker, self.job.program).seconds(self.job.sizes[shards.clone()].iter().sum())
        };
        let left = |&victim: &usize| {
            let waiting: f64 = self.queues[&victim].iter().map(|group| seconds(victim, group)).sum();
            let current = workers.current(victim).map_or(0.0, |order| {
                let Task::Run { group, .. } = &order.task else { return 0.0 };
                let (expected, passed) =
                    (seconds(victim, &group.shards), now.saturating_sub(order.since).as_secs_f64());
                // An order past its expected time will probably take as long again.
                if passed < expected { expected - passed } else { passed }
            });
            waiting + current
        };
        let behind = self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&victim, _)| victim);
        let victim = behind.max_by(|a, b| left(a).total_cmp(&left(b)))?;
        let group = self.queues[&victim].back()?;
        let takes = seconds(worker, group) < left(&victim)
            && group.len() <= workers.at_once(worker, self.job.program);
        if takes { self.queues.get_mut(&victim)?.pop_back() } else { None }
    }

    /// Notes what a worker ran, and how long it took if it could run it.
    pub fn ran(
        &mut self,
        worker: usize,
        group: ShardGroup,
        segments: &Range<usize>,
        spent: Option<Duration>,
    ) {
        if segments.start == 0 && !group.shards.is_empty() {
            self.ran.insert(group.shards.start, (worker, group.shards.clone()));
        }
        // The last segment says nothing of the pace: the optimizer takes as long for few samples as for many.
        if let Some(spent) = spent.filter(|_| segments.start < self.last() || self.last() == 0) {
            *self.spent.entry(worker).or_default() += spent;
        }
        self.holds.insert(worker, group);
    }

    pub fn summed(&mut self, policy: &Policy, workers: &Workers) {
        if let Phase::Sum(segment) = self.phase {
            self.go_to(segment + 1, policy, workers);
        }
    }

    pub fn decided(&mut self, verdict: Verdict, policy: &Policy, workers: &Workers) {
        if self.phase == Phase::Decide {
            self.verdict = Some(verdict);
            self.go_to(self.last(), policy, workers);
        }
    }

    /// Starts again with other shards, because other machines were lost.
    pub fn moved(&mut self, sizes: Vec<usize>, share: Option<Share>) {
        (self.job.sizes, self.job.share) = (sizes, share);
        (self.verdict, self.asked) = (None, false);
        self.phase = Phase::Restart;
    }

    pub fn spread(&mut self) {
        if self.phase == Phase::Spread {
            self.phase = Phase::End { committed: true };
        }
    }

    /// Handles the loss of a worker, whose `order` was not answered.
    pub fn lost(&mut self, worker: usize, order: Order, workers: &Workers, policy: &Policy) {
        let was_leader = policy.one_updates && workers.present().first().is_none_or(|&first| worker < first);
        let queue = self.queues.remove(&worker).unwrap_or_default();
        self.holds.remove(&worker);
        match self.phase {
            // Of a step whose sums were to stay on this worker nothing is done: with several workers they
            // come to the host.
            Phase::Segment(0) if self.is_whole() => self.phase = Phase::Restart,
            Phase::Segment(0) if self.job.few_at_once && !was_leader && !workers.present().is_empty() => {
                let begun = if let Task::Run { group, .. } = order.task { Some(group.shards) } else { None };
                for shards in begun.into_iter().chain(queue).filter(|shards| !shards.is_empty()) {
                    self.share(shards, workers);
                }
            }
            Phase::Commit if self.job.changes_state && !was_leader => {}
            Phase::Spread if !was_leader => {}
            Phase::GiveUp | Phase::End { .. } | Phase::Over => {}
            _ => self.phase = Phase::Restart,
        }
    }

    /// Shares the shards of a worker that left among those that stay.
    fn share(&mut self, shards: Range<usize>, workers: &Workers) {
        let present = workers.present();
        let costs: Vec<_> = present.iter().map(|&w| workers.known_cost(w, self.job.program)).collect();
        let sizes = &self.job.sizes[shards.clone()];
        let most = vec![usize::MAX; present.len()];
        let parts = super::assign::assign(super::Assignment::Speed, sizes, &costs, &most, None, 1);
        for (worker, part) in present.into_iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            let part = shards.start + part.start..shards.start + part.end;
            self.queues
                .entry(worker)
                .or_default()
                .extend(groups(part, workers.at_once(worker, self.job.program)));
        }
    }

    /// Returns whether the group that a worker runs may be divided: the segment runs in groups, or is of no
    /// use.
    pub fn may_divide(&self) -> bool {
        self.job.few_at_once && matches!(self.phase, Phase::Segment(0) | Phase::Restart | Phase::GiveUp)
    }

    /// Puts a group that a worker has no memory for back into its queue, in pieces that it has memory for.
    pub fn divide(&mut self, worker: usize, shards: Range<usize>, workers: &Workers) {
        let pieces = groups(shards, workers.at_once(worker, self.job.program));
        let queue = self.queues.entry(worker).or_default();
        pieces.into_iter().rev().for_each(|piece| queue.push_front(piece));
    }

    fn end(&mut self, committed: bool, workers: &mut Workers, out: &mut Vec<Action>) {
        let mut shares: BTreeMap<usize, (usize, usize)> = self.holds.keys().map(|&w| (w, (0, 0))).collect();
        for (worker, shards) in self.ran.values() {
            let share = shares.entry(*worker).or_default();
            share.0 += shards.len();
            share.1 += self.job.sizes[shards.clone()].iter().sum::<usize>();
        }
        for worker in workers.present() {
            if let (Some((_, rows)), Some(spent)) = (shares.get(&worker), self.spent.get(&worker)) {
                workers.saw(worker, self.job.program, *rows, *spent);
            }
        }
        out.push(Action::End { committed, shares });
    }
}

/// Returns the shards of the whole batch.
fn leaves(job: &Job) -> usize {
    job.share.map_or(job.sizes.len(), |share| share.all)
}

/// Divides a run of shards into groups of at most `at_once`. Groups end at multiples of it, so that few
/// subtrees are cut.
fn groups(range: Range<usize>, at_once: usize) -> Vec<Range<usize>> {
    if range.len() <= at_once {
        return vec![range];
    }
    let mut groups = vec![];
    let mut first = range.start;
    while first < range.end {
        let end = (first / at_once).saturating_add(1).saturating_mul(at_once).min(range.end);
        groups.push(first..end);
        first = end;
    }
    groups
}
