//! Simulated workers and host. They check every action of the scheduler against its invariants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use unisono_graph::tree;

use super::super::*;
use super::Draw;
use super::checks::{Checked, all_summed, covers, ensure, same_sum};
use super::plans::Plans;

/// The probabilities of faults, in thousandths of the orders.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub fails: usize,
    pub silent: usize,
    pub late: usize,
    pub twice: usize,
    pub changes_pace: usize,
    /// How many workers, in thousandths, have no memory for all shards.
    pub short_of_memory: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub job: Job,
    pub skip: bool,
    pub not_finite: bool,
}

#[derive(Debug, Default)]
struct Worker {
    /// The order to which it owes an answer.
    busy: Option<u64>,
    left: bool,
    /// The seconds for each sample.
    pace: f64,
    /// The seconds that any work takes in addition.
    fixed: f64,
    /// The number of commits in its state.
    state: u64,
    /// The shards that it ran last, and the segment that it can run next.
    memory: Option<(Range<usize>, usize)>,
    /// The most shards for which it has memory; none if it has memory for all.
    room: Option<usize>,
    /// The step in which it committed last.
    committed_in: Option<u64>,
    /// Whether its next run fails.
    fails: bool,
    plans: Plans,
}

pub(super) struct Simulation {
    pub draw: Draw,
    pub lost: usize,
    pub late: usize,
    pub joined: usize,
    pub committed: usize,
    pub loads: usize,
    /// The shards and samples of each worker in the last step that ended.
    pub shares: BTreeMap<usize, (usize, usize)>,
    /// The number of plans that each worker keeps loaded; none if it keeps all.
    pub keeps: Option<usize>,
    scheduler: Scheduler,
    policy: Policy,
    fate: Fate,
    now: Duration,
    workers: Vec<Worker>,
    /// The events under way, by the time at which they arrive.
    arriving: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    steps: u64,
    gave_up: bool,
    state: u64,
}

impl Simulation {
    pub fn new(workers: usize, policy: Policy, fate: Fate, mut draw: Draw) -> Self {
        let fixed = 1e-3 * draw.below(2) as f64;
        let worker = |_| {
            let short = draw.below(1000) < fate.short_of_memory;
            let room = short.then(|| 1 + draw.below(12));
            Worker { pace: 10f64.powf(draw.unit() * 1.5 - 3.0), fixed, room, ..Worker::default() }
        };
        let workers: Vec<Worker> = (0..workers).map(worker).collect();
        Self {
            draw,
            lost: 0,
            late: 0,
            joined: 0,
            committed: 0,
            loads: 0,
            shares: BTreeMap::new(),
            keeps: None,
            scheduler: Scheduler::new(workers.len(), policy),
            policy,
            fate,
            now: Duration::ZERO,
            workers,
            arriving: BTreeMap::new(),
            serial: 0,
            steps: 0,
            gave_up: false,
            state: 0,
        }
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    /// Sets the samples a second of each worker, and the seconds that any work takes in addition.
    pub fn speeds(&mut self, workers: &[(f64, f64)]) {
        for (worker, (speed, fixed)) in self.workers.iter_mut().zip(workers) {
            (worker.pace, worker.fixed) = (1.0 / speed, *fixed);
        }
    }

    /// Sets the most shards for which each worker has memory.
    pub fn rooms(&mut self, workers: &[usize]) {
        self.workers.iter_mut().zip(workers).for_each(|(worker, room)| worker.room = Some(*room));
    }

    /// Forgets programs.
    pub fn forget(&mut self, programs: Range<usize>) {
        self.workers.iter_mut().for_each(|worker| worker.plans.forget(&programs));
        assert_eq!(self.scheduler.on(self.now, Event::Forgotten(programs)), []);
    }

    /// Returns what the scheduler knows of the workers.
    pub fn records(&self) -> String {
        format!("{:?}", self.scheduler.workers)
    }

    /// Makes a worker leave.
    pub fn lose(&mut self, worker: usize) {
        self.workers[worker].left = true;
        self.scheduler.on(self.now, Event::Reject(worker));
    }

    /// Makes a worker fail in the next step, while it runs shards.
    pub fn fail(&mut self, worker: usize) {
        self.workers[worker].fails = true;
    }

    pub fn join(&mut self) {
        if self.scheduler.present().is_empty() {
            return;
        }
        let pace = 10f64.powf(self.draw.unit() * 1.5 - 3.0);
        self.workers.push(Worker { pace, state: self.state, ..Worker::default() });
        self.joined += 1;
        let actions =
            self.scheduler.on(self.now, Event::Joined { worker: self.workers.len() - 1, late: true });
        assert_eq!(actions, []);
    }

    /// Runs a step until its end. Returns false if no worker is left.
    pub fn step(&mut self, wanted: &Step) -> Checked<bool> {
        let began = self.now;
        self.gave_up = false;
        let workers = self.scheduler.present().len() as u32;
        let mut actions: VecDeque<Action> =
            self.scheduler.on(self.now, Event::Begin(wanted.job.clone())).into();
        self.steps += u64::from(!wanted.job.load_only);
        let (mut decided, mut spreading) = (0, None);
        // The results that count for each cut: its blocks, and the groups of shards that are kept.
        let mut kept: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
        let mut summed = BTreeSet::new();
        for _ in 0..20_000 {
            let Some(action) = actions.pop_front() else {
                let event = self.next_event()?;
                actions.extend(self.scheduler.on(self.now, event));
                continue;
            };
            match action {
                Action::Load { worker, ticket, program, run } => {
                    self.load(worker, program, &run)?;
                    let seconds = Duration::from_millis(self.draw.below(2000) as u64);
                    let fits = self.workers[worker].room.is_none_or(|room| run.sizes.len() <= room);
                    let response = if fits { Response::Done(seconds) } else { no_room(wanted) };
                    self.take(worker, ticket, seconds, response)?;
                }
                Action::Run { worker, ticket, program, group, segments } => {
                    self.load(worker, program, &group.run)?;
                    self.run(wanted, worker, ticket, &group, &segments)?;
                }
                Action::Keep { shards, segments, .. } => {
                    for segment in segments {
                        kept.entry(segment).or_default().push(shards.clone());
                    }
                }
                Action::Restart => {
                    kept.clear();
                    summed.clear();
                }
                Action::Sum { cut, shards, leaves } => {
                    let groups = kept.get(&cut).cloned().unwrap_or_default();
                    covers(&groups, shards)?;
                    same_sum(&groups, shards, leaves)?;
                    let blocks: Vec<_> =
                        groups.iter().flat_map(|p| tree::blocks(p.clone(), leaves)).collect();
                    kept.insert(cut, blocks);
                    summed.insert(cut);
                    self.gave_up = wanted.not_finite;
                    let event = if self.gave_up { Event::GiveUp } else { Event::Summed };
                    self.arrive(Duration::from_micros(10), event);
                }
                Action::Decide => {
                    decided += 1;
                    all_summed(wanted, &kept, &summed)?;
                    let verdict = if wanted.skip { Verdict::Skip } else { Verdict::Commit };
                    self.arrive(Duration::from_micros(1), Event::Decided(verdict));
                }
                Action::Spread { from } => {
                    spreading = Some(from);
                    actions.extend(
                        self.scheduler
                            .on(self.now, Event::Ask { workers: vec![from], within: self.policy.deadline }),
                    );
                }
                Action::Ask { worker, ticket } => {
                    self.take(worker, ticket, Duration::from_millis(3), Response::Done(Duration::ZERO))?;
                }
                Action::AllAnswered => {
                    // The source may have left meanwhile: then the step starts again.
                    let from = spreading.take().filter(|from| !self.workers[*from].left);
                    if let Some(from) = from {
                        let state = self.workers[from].state;
                        self.workers.iter_mut().filter(|w| !w.left).for_each(|w| w.state = state);
                        actions.extend(self.scheduler.on(self.now, Event::Spread));
                    }
                }
                Action::Leave { worker, loss } => {
                    ensure(!self.workers[worker].left, || format!("{worker} leaves twice"))?;
                    self.workers[worker].left = true;
                    self.lost += 1;
                    self.late += usize::from(matches!(loss, Loss::Late(_)));
                }
                Action::End { committed, shares } => {
                    self.bounded(began, workers, wanted)?;
                    if !wanted.job.load_only {
                        all_summed(wanted, &kept, &summed)?;
                    }
                    self.ended(wanted, committed, decided, &shares)?;
                    self.shares = shares;
                    return Ok(true);
                }
                Action::GivenUp { .. } => {
                    ensure(self.gave_up, || "gave up".into())?;
                    return self.unchanged().map(|()| true);
                }
                Action::NoneLeft => {
                    self.bounded(began, workers, wanted)?;
                    let all = self.workers.iter().all(|worker| worker.left);
                    return ensure(all, || "somebody is left".into()).map(|()| false);
                }
            }
        }
        Err("no end".into())
    }

    fn ended(
        &mut self,
        wanted: &Step,
        committed: bool,
        decided: usize,
        shares: &BTreeMap<usize, (usize, usize)>,
    ) -> Checked<()> {
        if wanted.job.load_only {
            ensure(!committed && decided == 0, || "loading commits".into())?;
            return self.unchanged();
        }
        ensure(decided == 1, || format!("asked {decided} times"))?;
        ensure(committed != wanted.skip, || format!("committed: {committed}"))?;
        // Where the last segment has samples, those of a worker that is lost in it are missing.
        let all_must_be_there = wanted.job.segments > 1 || !wanted.job.changes_state;
        if committed && all_must_be_there {
            let shards: usize = shares.values().map(|share| share.0).sum();
            let rows: usize = shares.values().map(|share| share.1).sum();
            let all = (wanted.job.sizes.len(), wanted.job.sizes.iter().sum());
            ensure((shards, rows) == all, || format!("{shares:?} of {all:?}"))?;
        }
        self.state += u64::from(committed && wanted.job.changes_state);
        self.committed += usize::from(committed);
        self.unchanged()
    }

    /// Checks that all present workers have the state that they should have.
    fn unchanged(&self) -> Checked<()> {
        let states: Vec<u64> = self.workers.iter().filter(|w| !w.left).map(|w| w.state).collect();
        ensure(states.iter().all(|&state| state == self.state), || format!("{states:?}, not {}", self.state))
    }

    /// Checks the time of a step: each phase waits for one answer of each worker at a time, and each loss
    /// starts it again once.
    fn bounded(&self, began: Duration, workers: u32, wanted: &Step) -> Checked<()> {
        let phases = wanted.job.segments as u32 + 4 + wanted.job.sizes.len() as u32;
        let most = (self.policy.deadline + self.policy.loading) * (workers + 1) * phases;
        let took = self.now - began;
        ensure(took <= most, || format!("took {took:?}, more than {most:?}"))
    }

    /// Has a worker use a plan. What it has not loaded must not count as loaded, and has time to be.
    fn load(&mut self, worker: usize, program: usize, run: &Arc<Run>) -> Checked<()> {
        let of = &mut self.workers[worker];
        if !of.plans.has(program, run) {
            self.loads += 1;
            let workers = &self.scheduler.workers;
            let known = workers.is_loaded(worker, program, run);
            ensure(!known, || format!("{worker} has dropped {run:?}, which counts as loaded"))?;
            let has_time = |order: &Order| order.due - order.since >= self.policy.loading;
            let has_time = workers.current(worker).is_some_and(has_time);
            ensure(has_time, || format!("{worker} has no time to load {run:?}"))?;
        }
        let fits = of.room.is_none_or(|room| run.sizes.len() <= room);
        of.plans.take(program, run, self.keeps, fits);
        Ok(())
    }

    fn run(
        &mut self,
        wanted: &Step,
        worker: usize,
        ticket: u64,
        group: &ShardGroup,
        segments: &Range<usize>,
    ) -> Checked<()> {
        let last = wanted.job.segments - 1;
        let of = &mut self.workers[worker];
        let ready = segments.start == 0 || of.memory == Some((group.shards.clone(), segments.start));
        ensure(ready, || format!("{worker} has {:?}, is to run {segments:?} of {group:?}", of.memory))?;
        of.memory = Some((group.shards.clone(), segments.end));
        let rows: usize = wanted.job.sizes[group.shards.clone()].iter().sum();
        let before: usize = wanted.job.sizes[..group.run.first].iter().sum();
        ensure(group.first_row == before, || format!("{group:?}"))?;
        let needed = wanted.job.changes_state || !group.shards.is_empty();
        ensure(needed, || format!("{worker} has no shards and nothing to commit"))?;
        ensure(group.run.rows() == rows, || format!("{group:?}"))?;
        if segments.end == last + 1 && wanted.job.changes_state {
            ensure(segments.len() == 1, || format!("commits with {segments:?}"))?;
            ensure(!wanted.skip && !self.gave_up, || "commits what is to be skipped".into())?;
            ensure(of.committed_in != Some(self.steps), || format!("{worker} commits twice"))?;
            of.committed_in = Some(self.steps);
            let updates = !self.policy.one_updates || self.scheduler.present().first() == Some(&worker);
            ensure(updates, || format!("{worker} updates, and another replica updates for all"))?;
            of.state += 1;
        }
        if segments.start == last && last > 0 {
            let little = Duration::from_micros(1);
            let fits = of.room.is_none_or(|room| group.shards.len() <= room);
            let response = if fits { Response::Done(little) } else { no_room(wanted) };
            return self.take(worker, ticket, little, response);
        }
        self.time(worker, ticket, group, no_room(wanted))
    }

    fn time(&mut self, worker: usize, ticket: u64, group: &ShardGroup, no_room: Response) -> Checked<()> {
        if self.draw.below(1000) < self.fate.changes_pace {
            self.workers[worker].pace = 10f64.powf(self.draw.unit() * 1.5 - 3.0);
        }
        let Worker { pace, fixed, room, .. } = self.workers[worker];
        let spent = Duration::from_secs_f64(fixed + group.run.rows() as f64 * pace);
        // A worker that has not loaded the plan loads it now.
        let fits = room.is_none_or(|room| group.shards.len() <= room);
        let fails = std::mem::take(&mut self.workers[worker].fails);
        let response = if fits { Response::Done(spent) } else { no_room };
        self.take(worker, ticket, spent, if fails { Response::Failed } else { response })
    }

    /// Has a worker take an order, which it will answer or not.
    fn take(&mut self, worker: usize, ticket: u64, spent: Duration, response: Response) -> Checked<()> {
        let of = &mut self.workers[worker];
        ensure(!of.left, || format!("{worker} has left and is told something"))?;
        ensure(of.busy.is_none(), || format!("{worker} owes an answer and is told something"))?;
        of.busy = Some(ticket);
        let Fate { fails, silent, late, twice, .. } = self.fate;
        let fate = self.draw.below(1000);
        let answer = |response| Event::Answer { worker, ticket, response };
        let plans = std::mem::take(&mut of.plans.dropped);
        if !plans.is_empty() {
            self.arrive(spent, Event::Unloaded { worker, plans });
        }
        if fate < fails {
            self.arrive(spent, answer(Response::Failed));
        } else if fate < fails + silent {
            // It never answers.
        } else if fate < fails + silent + late {
            self.arrive(spent + Duration::from_secs(700), answer(response));
        } else {
            self.arrive(spent, answer(response));
            if fate >= 1000 - twice {
                let again = Duration::from_millis(self.draw.below(3000) as u64);
                self.arrive(spent + again, answer(response));
            }
        }
        Ok(())
    }

    fn arrive(&mut self, after: Duration, event: Event) {
        self.serial += 1;
        self.arriving.insert((self.now + after, self.serial), event);
    }

    /// Moves the clock to the next event: an arrival, or a deadline.
    fn next_event(&mut self) -> Checked<Event> {
        let (due, first) = (self.scheduler.due(), self.arriving.first_key_value().map(|(key, _)| key.0));
        // A wait reads the clock in between.
        if let Some(next) = due.into_iter().chain(first).min().filter(|_| self.draw.once_in(8)) {
            self.now = self.now.max((self.now + next) / 2);
            return Ok(Event::Tick);
        }
        let event = match (due, first) {
            (None, None) => return Err("deadlock".into()),
            (Some(due), first) if first.is_none_or(|first| due <= first) => {
                self.now = self.now.max(due);
                Event::Tick
            }
            _ => {
                let Some(((at, _), event)) = self.arriving.pop_first() else { return Ok(Event::Tick) };
                self.now = self.now.max(at);
                event
            }
        };
        if let Event::Answer { worker, ticket, .. } = event {
            self.workers[worker].busy.take_if(|busy| *busy == ticket);
        }
        Ok(event)
    }
}

/// Returns what a worker answers that has no memory for an order: a step that is made again is a diagnostic.
fn no_room(wanted: &Step) -> Response {
    if matches!(wanted.job.roles, Roles::Usual | Roles::Even) { Response::NoMemory } else { Response::Cannot }
}
