//! The workers as the scheduler knows them: which are present, which owe an answer until when, how fast each
//! is, and what it has loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::Run;

use super::assign::{Assignment, assign};
use super::pace::{Cost, Pace};
use super::{Job, Policy, Roles, ShardGroup};

/// Why a worker left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It answered that it failed.
    Failed,
    /// It did not answer for so long.
    Late(Duration),
}

/// What a worker was ordered to do.
#[derive(Clone, Debug)]
pub(super) enum Task {
    Load { program: usize, run: Arc<Run> },
    Run { group: ShardGroup, segments: Range<usize> },
    Asked,
}

/// An order that a worker has not answered.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub ticket: u64,
    pub task: Task,
    pub since: Duration,
    pub due: Duration,
}

#[derive(Debug, Default)]
struct Worker {
    present: bool,
    /// Whether it joined a run that others had started.
    late: bool,
    order: Option<Order>,
    /// The pace with each program.
    paces: BTreeMap<usize, Pace>,
    /// The plans that it has loaded now.
    loaded: BTreeSet<(usize, Arc<Run>)>,
    /// The numbers of shards for which it ever had a plan loaded, by program.
    could: BTreeMap<usize, BTreeSet<usize>>,
    /// The most shards that it runs at once, by program, where it had no memory for more.
    at_once_limits: BTreeMap<usize, usize>,
    /// The same for programs that have the cuts of [`Roles::Even`].
    even_limits: BTreeMap<usize, usize>,
}

impl Worker {
    /// Returns the most shards of a program that it runs at once, if it had no memory for more. Programs with
    /// the cuts of [`Roles::Even`] read what others left on the same worker. They all have the least of their
    /// limits, so that they have the same cuts.
    fn limit(&self, program: usize, roles: Roles) -> Option<usize> {
        match roles {
            Roles::Even => self.even_limits.values().min().copied(),
            _ => self.at_once_limits.get(&program).or_else(|| self.even_limits.get(&program)).copied(),
        }
    }
}

/// The number of times that an assignment is used before another may replace it: what one step took may be
/// chance, and another assignment has plans to load.
const STANDS: u32 = 3;

/// What an assignment is for: a program, the sizes of its shards, and the workers in their order with the
/// most shards of each.
type Case = (usize, Vec<usize>, Vec<(usize, usize)>);

#[derive(Debug)]
pub(super) struct Workers {
    policy: Policy,
    workers: Vec<Worker>,
    tickets: u64,
    /// The last assignment of each case, and how often it was used.
    layouts: BTreeMap<Case, (Vec<Range<usize>>, u32)>,
}

impl Workers {
    pub fn new(workers: usize, policy: Policy) -> Self {
        let worker = |_| Worker { present: true, ..Worker::default() };
        Self { policy, workers: (0..workers).map(worker).collect(), tickets: 0, layouts: BTreeMap::new() }
    }

    pub fn present(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&w| self.workers[w].present).collect()
    }

    /// Returns whether the assignment must not depend on speed, since the workers may not all compute the
    /// same bits.
    pub fn is_pinned(&self) -> bool {
        self.policy.one_updates
    }

    /// Returns whether no worker owes an answer.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| worker.order.is_none())
    }

    /// Returns the present workers that owe no answer.
    pub fn free(&self) -> Vec<usize> {
        self.present().into_iter().filter(|&w| self.workers[w].order.is_none()).collect()
    }

    pub fn current(&self, worker: usize) -> Option<&Order> {
        self.workers.get(worker)?.order.as_ref()
    }

    pub fn due(&self) -> Option<Duration> {
        self.workers.iter().filter_map(|worker| Some(worker.order.as_ref()?.due)).min()
    }

    pub fn join(&mut self, worker: usize, late: bool) {
        while self.workers.len() <= worker {
            self.workers.push(Worker::default());
        }
        self.workers[worker] = Worker { present: true, late, ..Worker::default() };
    }

    pub fn is_late(&self, worker: usize) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.late)
    }

    pub fn leave(&mut self, worker: usize) {
        self.workers[worker] = Worker::default();
    }

    /// Opens an order to a worker, to be answered within so long. Returns its ticket; none if the worker is
    /// absent or busy.
    pub fn order(&mut self, now: Duration, worker: usize, task: Task, within: Duration) -> Option<u64> {
        let of = self.workers.get_mut(worker).filter(|of| of.present && of.order.is_none())?;
        self.tickets += 1;
        let ticket = self.tickets;
        of.order = Some(Order { ticket, task, since: now, due: now.saturating_add(within) });
        Some(ticket)
    }

    /// Closes the order that is answered. Returns none if there is no such open order.
    pub fn close(&mut self, worker: usize, ticket: u64) -> Option<Order> {
        let order = &mut self.workers.get_mut(worker)?.order;
        if order.as_ref().is_some_and(|order| order.ticket == ticket) { order.take() } else { None }
    }

    /// Takes the orders that should have been answered by now.
    pub fn overdue(&mut self, now: Duration) -> Vec<(usize, Order, Loss)> {
        let late = |(w, worker): (usize, &mut Worker)| {
            let order = worker.order.take_if(|order| order.due <= now)?;
            let loss = Loss::Late(now.saturating_sub(order.since));
            Some((w, order, loss))
        };
        self.workers.iter_mut().enumerate().filter_map(late).collect()
    }

    pub fn is_loaded(&self, worker: usize, program: usize, run: &Arc<Run>) -> bool {
        self.workers[worker].loaded.contains(&(program, Arc::clone(run)))
    }

    pub fn loaded(&mut self, worker: usize, program: usize, run: Arc<Run>) {
        let worker = &mut self.workers[worker];
        worker.could.entry(program).or_default().insert(run.sizes.len());
        worker.loaded.insert((program, run));
    }

    /// Notes that a worker has dropped plans.
    pub fn unloaded(&mut self, worker: usize, plans: &[(usize, Arc<Run>)]) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.loaded.retain(|loaded| !plans.contains(loaded));
        }
    }

    /// Forgets all that is known of programs.
    pub fn forget(&mut self, programs: &Range<usize>) {
        for worker in &mut self.workers {
            worker.paces.retain(|program, _| !programs.contains(program));
            worker.loaded.retain(|(program, _)| !programs.contains(program));
            worker.could.retain(|program, _| !programs.contains(program));
            worker.at_once_limits.retain(|program, _| !programs.contains(program));
            worker.even_limits.retain(|program, _| !programs.contains(program));
        }
        self.layouts.retain(|(program, ..), _| !programs.contains(program));
    }

    /// Returns the most shards that a worker runs at once.
    pub fn at_once(&self, worker: usize, program: usize) -> usize {
        self.limit(worker, program, Roles::Usual, self.policy.shards_at_once.unwrap_or(usize::MAX).max(1))
    }

    fn limit(&self, worker: usize, program: usize, roles: Roles, asked: usize) -> usize {
        self.workers[worker].limit(program, roles).map_or(asked, |limit| limit.min(asked))
    }

    /// Limits a worker that could not load so many shards to the number that it could load before. Returns
    /// false, and changes nothing, if that was none, if the assignment must not change, or if all workers
    /// together would not take `all` shards.
    pub fn lower_limit(
        &mut self,
        worker: usize,
        (program, roles): (usize, Roles),
        tried: usize,
        all: usize,
    ) -> bool {
        let counts = self.workers[worker].could.get(&program).into_iter().flatten().copied();
        let fewer = counts.filter(|&count| 0 < count && count < tried).max();
        let Some(fewer) = fewer.filter(|_| !self.is_pinned()) else { return false };
        let limit = |w: usize| if w == worker { fewer } else { self.limit(w, program, roles, usize::MAX) };
        let enough = self.present().into_iter().map(limit).fold(0, usize::saturating_add) >= all;
        if enough {
            let Worker { at_once_limits, even_limits, .. } = &mut self.workers[worker];
            let limits = if roles == Roles::Even { even_limits } else { at_once_limits };
            limits.insert(program, fewer);
        }
        enough
    }

    /// Returns the most shards of each of these workers, if these are enough for all shards.
    fn limits(&self, job: &Job, among: &[usize], asked: usize) -> Option<Vec<usize>> {
        let limits: Vec<usize> =
            among.iter().map(|&w| self.limit(w, job.program, job.roles, asked)).collect();
        (limits.iter().copied().fold(0, usize::saturating_add) >= job.sizes.len()).then_some(limits)
    }

    /// Notes how long a worker took for so many samples.
    pub fn saw(&mut self, worker: usize, program: usize, samples: usize, spent: Duration) {
        self.workers[worker].paces.entry(program).or_default().add(samples, spent);
    }

    /// Returns the cost of a worker, where it is known.
    pub fn known_cost(&self, worker: usize, program: usize) -> Option<Cost> {
        self.workers.get(worker)?.paces.get(&program)?.cost()
    }

    /// Returns the cost of a worker, or the mean of the other workers' costs if it is not known.
    pub fn cost(&self, worker: usize, program: usize) -> Cost {
        let present = self.present();
        let known: Vec<Cost> = present.iter().filter_map(|&w| self.known_cost(w, program)).collect();
        let mean = Cost::mean(&known).unwrap_or(Cost { fixed: 0.0, sample: 1.0 });
        self.known_cost(worker, program).unwrap_or(mean)
    }

    /// Returns the shards of each of these workers, which are present. With `few_at_once`, one may be
    /// assigned more than it runs at once.
    pub fn assign(
        &mut self,
        how: Assignment,
        job: &Job,
        among: Vec<usize>,
        step: u64,
    ) -> BTreeMap<usize, Range<usize>> {
        let Job { program, few_at_once, ref sizes, .. } = *job;
        let costs: Vec<Option<Cost>> = among.iter().map(|&w| self.known_cost(w, program)).collect();
        let everything = vec![usize::MAX; among.len()];
        let asked = self.policy.shards_at_once.unwrap_or(usize::MAX);
        let limits = || {
            let within = |asked| self.limits(job, &among, asked);
            within(asked).or_else(|| within(usize::MAX))
        };
        let most = if few_at_once { everything } else { limits().unwrap_or(everything) };
        let key = (program, sizes.clone(), among.iter().copied().zip(most.iter().copied()).collect());
        let before = self.layouts.get(&key);
        let stands = |(ranges, used): &&(Vec<Range<usize>>, u32)| {
            how == Assignment::Speed && *used < STANDS && !ranges.iter().any(Range::is_empty)
        };
        // A step that is made again is compared block by block, for which it needs the same cuts.
        if let (Roles::Rotated(_), Some((ranges, _))) = (job.roles, before) {
            return among.into_iter().zip(ranges.iter().cloned()).collect();
        }
        let ranges = match before.filter(stands) {
            Some((ranges, _)) => ranges.clone(),
            None => assign(how, sizes, &costs, &most, before.map(|(ranges, _)| ranges), step),
        };
        let used = before.filter(|(before, _)| *before == ranges).map_or(0, |(_, used)| *used);
        self.layouts.insert(key, (ranges.clone(), used.saturating_add(1)));
        among.into_iter().zip(ranges).collect()
    }

    /// Gives each worker the shards of the one so many places before it. If one has no memory for them, the
    /// cuts move: then each gets as many as all others, as far as it has memory for that.
    pub fn rotated(
        &self,
        job: &Job,
        ranges: BTreeMap<usize, Range<usize>>,
        places: usize,
    ) -> BTreeMap<usize, Range<usize>> {
        let (workers, mut shards): (Vec<usize>, Vec<Range<usize>>) = ranges.clone().into_iter().unzip();
        shards.rotate_right(places % workers.len().max(1));
        let fits = |(&worker, shards): (&usize, &Range<usize>)| {
            job.few_at_once || shards.len() <= self.limit(worker, job.program, job.roles, usize::MAX)
        };
        if workers.iter().zip(&shards).all(fits) {
            return workers.into_iter().zip(shards).collect();
        }
        let mut order = workers;
        let places = places % order.len().max(1);
        order.rotate_left(places);
        let Some(most) = self.limits(job, &order, usize::MAX) else { return ranges };
        let unknown = vec![None; order.len()];
        let ranges = assign(Assignment::Even, &job.sizes, &unknown, &most, None, 0);
        order.into_iter().zip(ranges).collect()
    }

    /// Returns how long an order may take: a multiple of the worker's pace, within bounds.
    pub fn within(&self, worker: usize, program: usize, run: &Arc<Run>) -> Duration {
        let Policy { patience, grace, deadline, loading, .. } = self.policy;
        let usual = match self.known_cost(worker, program) {
            Some(cost) => {
                let expected = Duration::try_from_secs_f64(cost.seconds(run.rows())).unwrap_or(deadline);
                expected.saturating_mul(patience).max(grace).min(deadline)
            }
            None => deadline,
        };
        if self.is_loaded(worker, program, run) { usual } else { usual.saturating_add(loading) }
    }
}
