//! The scheduler among simulated workers: any speeds, losses, joins, late and repeated answers, on a
//! simulated clock.
//!
//! `simulation.rs` simulates the workers and the host, which check every order; the schedules are here, in
//! `memory.rs` those of workers with little memory, and in `plans.rs` those of workers that keep few plans.

mod checks;
mod memory;
mod plans;
mod simulation;

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use simulation::{Fate, Simulation, Step as Wanted};

pub(super) use super::assign::SplitMix as Draw;

impl Draw {
    /// Draws a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns true once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) fn policy() -> Policy {
    Policy {
        assignment: Assignment::Speed,
        patience: 20,
        grace: Duration::from_secs(30),
        deadline: Duration::from_secs(300),
        loading: Duration::from_secs(300),
        shards_at_once: None,
        one_updates: false,
    }
}

/// Returns a step of one cut with eight samples in each shard.
fn job(shards: usize, changes_state: bool) -> Job {
    let sizes = vec![8; shards];
    Job {
        share: None,
        program: 0,
        sizes,
        segments: 2,
        changes_state,
        few_at_once: true,
        load_only: false,
        roles: Roles::Usual,
        audited: false,
    }
}

/// Runs a schedule drawn from a seed. Returns how many workers were lost, late and joined, and how many steps
/// were committed.
fn schedule(seed: u64) -> [usize; 4] {
    let mut draw = Draw(seed);
    let assignment = match draw.below(4) {
        0 => Assignment::Even,
        1 => Assignment::Shuffled(seed),
        _ => Assignment::Speed,
    };
    let shards_at_once = draw.once_in(2).then(|| 1 + draw.below(5));
    let policy = Policy { assignment, shards_at_once, one_updates: draw.once_in(6), ..policy() };
    let workers = 1 + draw.below(8);
    let fate = Fate {
        fails: draw.below(3) * draw.below(12),
        silent: draw.below(2) * draw.below(12),
        late: draw.below(2) * draw.below(12),
        twice: draw.below(2) * 100,
        changes_pace: draw.below(2) * 100,
        short_of_memory: draw.below(2) * draw.below(500),
    };
    let mut simulation = Simulation::new(workers, policy, fate, draw);
    simulation.keeps = simulation.draw.once_in(2).then(|| 1 + simulation.draw.below(4));
    let steps = 1 + simulation.draw.below(6);
    for _ in 0..steps {
        if simulation.draw.once_in(5) {
            simulation.join();
        }
        if simulation.draw.once_in(8) {
            simulation.forget(0..1);
        }
        let shards = 1 + simulation.draw.below(20);
        let sizes: Vec<usize> = (0..shards).map(|_| 1 + simulation.draw.below(4)).collect();
        let segments = 1 + simulation.draw.below(4);
        let changes_state = !simulation.draw.once_in(4);
        let may = segments == 2 || segments == 1 && !changes_state;
        let roles = match simulation.draw.below(4) {
            0 => Roles::Rotated(simulation.draw.below(9)),
            1 => Roles::Alone(simulation.draw.below(9)),
            _ => Roles::Usual,
        };
        let wanted = Wanted {
            job: Job {
                share: None,
                program: simulation.draw.below(2),
                sizes,
                segments,
                changes_state,
                few_at_once: may && !simulation.draw.once_in(3),
                load_only: simulation.draw.once_in(8),
                roles,
                audited: false,
            },
            skip: simulation.draw.once_in(8),
            not_finite: simulation.draw.once_in(20),
        };
        if !simulation.step(&wanted).unwrap_or_else(|why| panic!("seed {seed}: {wanted:?}: {why}")) {
            break;
        }
    }
    [simulation.lost, simulation.late, simulation.joined, simulation.committed]
}

/// The invariants of `README.md`, over 50,000 schedules.
#[test]
fn every_step_commits_once_and_every_shard_counts_once() {
    let mut seen = [0; 4];
    for seed in 0..50_000 {
        schedule(seed).iter().zip(&mut seen).for_each(|(new, sum)| *sum += new);
    }
    // None of the tested events is rare.
    assert!(seen.iter().all(|&count| count > 10_000), "lost, late, joined, committed: {seen:?}");
}

/// Returns the samples a second at 32 shards after the paces are known.
fn rate(workers: &[(f64, f64)], shards_at_once: Option<usize>) -> f64 {
    rate_after(16, workers, shards_at_once)
}

/// Returns the samples a second at 32 shards after so many steps. Each worker is given by its samples a
/// second and by the seconds that any work takes in addition.
fn rate_after(steps: usize, workers: &[(f64, f64)], shards_at_once: Option<usize>) -> f64 {
    let policy = Policy { shards_at_once, ..policy() };
    let mut simulation = Simulation::new(workers.len(), policy, Fate::default(), Draw(1));
    simulation.speeds(workers);
    let job = job(32, true);
    let wanted = Wanted { job, skip: false, not_finite: false };
    (0..steps).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
    let began = simulation.now();
    (0..10).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
    2560.0 / (simulation.now() - began).as_secs_f64()
}

/// Returns the samples a second if samples could be divided freely: all workers are done at the same time.
fn ideal(workers: &[(f64, f64)]) -> f64 {
    let (speed, lost) =
        workers.iter().fold((0.0, 0.0), |(a, b), (speed, fixed)| (a + speed, b + speed * fixed));
    256.0 * speed / (256.0 + lost)
}

#[test]
fn pairs_from_1_to_1_to_10_to_1_reach_nine_tenths_of_the_sum_of_their_speeds() {
    for tenths in 10..=100 {
        for at_once in [None, Some(1), Some(4)] {
            let pair = [(1e3, 0.0), (100.0 * f64::from(tenths), 0.0)];
            let reached = rate(&pair, at_once) / ideal(&pair);
            let enough = if at_once == Some(4) { 0.85 } else { 0.9 };
            assert!(reached >= enough, "1 to {}: {reached:.3}, {at_once:?}", f64::from(tenths) / 10.0);
        }
    }
}

/// The scheduler distinguishes slow workers from workers with a large fixed cost, where launches take as long
/// as half of all samples on the faster one, on either or on both: after two assignments of three steps each,
/// the third is right.
#[test]
fn pairs_with_launches_that_take_their_time_reach_nine_tenths_of_what_is_possible() {
    for tenths in 10..=100 {
        let (slow, fast) = (1e3, 100.0 * f64::from(tenths));
        let launch = 0.5 * 256.0 / fast;
        for (first, second) in [(launch, 0.0), (0.0, launch), (launch, launch)] {
            let pair = [(slow, first), (fast, second)];
            let reached = rate_after(7, &pair, None) / ideal(&pair);
            assert!(reached >= 0.9, "1 to {}: {reached:.3}, {pair:?}", f64::from(tenths) / 10.0);
        }
    }
}

/// Returns the most samples a second that whole shards allow: the best time over all numbers of shards for
/// each worker, none among them.
fn possible(workers: &[(f64, f64)]) -> f64 {
    let of = |&(speed, fixed): &(f64, f64)| (1..=32).map(move |n| fixed + f64::from(n) * 8.0 / speed);
    let mut times: Vec<f64> = workers.iter().flat_map(of).collect();
    times.sort_by(f64::total_cmp);
    let fits = |time: f64| {
        let shards = |(speed, fixed): &(f64, f64)| ((time - fixed) * speed / 8.0 + 1e-9).floor().max(0.0);
        workers.iter().map(shards).sum::<f64>() >= 32.0
    };
    256.0 / times.into_iter().find(|&time| fits(time)).unwrap_or(f64::INFINITY)
}

/// Eight workers of speeds 1 to 8 cannot reach more than 8/9 of their sum with 32 shards, whatever the
/// assignment. Where nine tenths are possible they are reached; elsewhere the possible maximum is.
#[test]
fn sets_of_eight_reach_what_whole_shards_allow() {
    let mut draw = Draw(7);
    for launch in [0.0, 2e-3] {
        let mut reachable = 0;
        for _ in 0..200 {
            let eight: Vec<_> = (0..8).map(|_| (1e3 * (1.0 + 9.0 * draw.unit()), launch)).collect();
            let (reached, possible) = (rate(&eight, None), possible(&eight));
            assert!(reached >= 0.9 * possible, "{eight:?}: {reached:.0} of {possible:.0}");
            reachable += usize::from(reached >= 0.9 * ideal(&eight));
        }
        assert!(reachable > 0, "{launch}");
    }
    for even in [[1e3; 8], [1e3, 1e3, 1e3, 1e3, 3e3, 3e3, 3e3, 3e3]] {
        let even = even.map(|speed| (speed, 0.0));
        assert!(rate(&even, None) >= 0.9 * ideal(&even));
    }
}

/// When a worker becomes ten times slower within a step, other workers take over groups that wait for it,
/// unless the result may depend on the assignment.
#[test]
fn idle_workers_take_over_waiting_shards() {
    let seconds = |shards_at_once, one_updates| {
        let policy = Policy { shards_at_once, assignment: Assignment::Even, one_updates, ..policy() };
        let mut simulation = Simulation::new(2, policy, Fate::default(), Draw(3));
        simulation.speeds(&[(1e3, 0.0), (1e2, 0.0)]);
        let job = job(32, true);
        let wanted = Wanted { job, skip: false, not_finite: false };
        simulation.step(&wanted).unwrap();
        let began = simulation.now();
        simulation.step(&wanted).unwrap();
        (simulation.now() - began).as_secs_f64()
    };
    let (waited, taken) = (seconds(None, false), seconds(Some(1), false));
    assert!(taken < 0.3 * waited, "{taken:.3} s, without: {waited:.3} s");
    let pinned = seconds(Some(1), true);
    assert!(pinned > 0.99 * waited, "{pinned:.3} s, without groups: {waited:.3} s");
}

/// A worker that is much faster has all shards, so that its sums stay on its device. It is lost, and several
/// take its shards over.
#[test]
fn sums_come_to_the_host_where_several_take_over_from_one_that_had_all_shards() {
    let mut simulation = Simulation::new(3, policy(), Fate::default(), Draw(9));
    simulation.speeds(&[(1e5, 0.0), (1e3, 0.0), (1e3, 0.0)]);
    let wanted = Wanted { job: job(8, false), skip: false, not_finite: false };
    (0..10).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
    simulation.fail(0);
    assert_eq!((simulation.step(&wanted), simulation.lost), (Ok(true), 1));
}

#[test]
fn a_late_worker_is_lost_named_and_what_it_says_later_is_ignored() {
    let mut scheduler = Scheduler::new(2, policy());
    let job = job(4, true);
    let second = Duration::from_secs;
    let done =
        |worker, ticket, seconds| Event::Answer { worker, ticket, response: Response::Done(second(seconds)) };
    let loads = scheduler.on(second(0), Event::Begin(job));
    let mut runs = Vec::new();
    for action in loads {
        let Action::Load { worker, ticket, .. } = action else { panic!("{action:?}") };
        runs.extend(scheduler.on(second(1), done(worker, ticket, 1)));
    }
    let tickets: Vec<(usize, u64)> = runs
        .iter()
        .map(|action| match action {
            Action::Run { worker, ticket, .. } => (*worker, *ticket),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tickets.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(scheduler.due(), Some(second(301)));
    let kept = scheduler.on(second(2), done(0, tickets[0].1, 1));
    assert!(matches!(kept[..], [Action::Keep { worker: 0, .. }]), "{kept:?}");
    let late = scheduler.on(second(301), Event::Tick);
    assert_eq!(late[0], Action::Leave { worker: 1, loss: Loss::Late(second(300)) });
    let Action::Run { worker: 0, ticket, group, .. } = &late[1] else { panic!("{late:?}") };
    assert_eq!(group.shards, 2..4);
    assert_eq!(scheduler.on(second(302), done(1, tickets[1].1, 1)), []);
    let kept = scheduler.on(second(303), done(0, *ticket, 1));
    assert!(matches!(kept[..], [Action::Keep { worker: 0, .. }, Action::Sum { cut: 0, .. }]), "{kept:?}");
}

/// A worker answers that an order took four hours, of which the scheduler's clock shows ten seconds: the
/// process was stopped. Its pace stays as it was, however few steps there were.
#[test]
fn no_worker_is_slow_for_hours_that_nobody_had() {
    let mut scheduler = Scheduler::new(2, policy());
    let mut given = Vec::new();
    let mut now = Duration::ZERO;
    for _ in 0..4 {
        let mut actions: VecDeque<Action> = scheduler.on(now, Event::Begin(job(4, true))).into();
        while let Some(action) = actions.pop_front() {
            let event = match action {
                Action::Load { worker, ticket, .. } | Action::Run { worker, ticket, .. } => {
                    // Both answer at the same time.
                    now += Duration::from_secs(if worker == 0 { 10 } else { 0 });
                    let spent = Duration::from_secs(if worker == 1 { 4 * 3600 } else { 10 });
                    if let Action::Run { group, .. } = action {
                        given.push(group.shards.len());
                    }
                    Event::Answer { worker, ticket, response: Response::Done(spent) }
                }
                Action::Sum { .. } => Event::Summed,
                Action::Decide => Event::Decided(Verdict::Commit),
                _ => continue,
            };
            actions.extend(scheduler.on(now, event));
        }
    }
    assert_eq!(given, [2; 16]);
}

/// Returns all orders of a step to its workers, with answers at once.
fn orders(workers: usize, job: Job) -> Vec<Action> {
    let mut scheduler = Scheduler::new(workers, policy());
    let mut all = Vec::new();
    let mut actions: VecDeque<Action> = scheduler.on(Duration::ZERO, Event::Begin(job)).into();
    while let Some(action) = actions.pop_front() {
        let event = match &action {
            Action::Load { worker, ticket, .. } | Action::Run { worker, ticket, .. } => {
                let response = Response::Done(Duration::from_secs(1));
                Some(Event::Answer { worker: *worker, ticket: *ticket, response })
            }
            Action::Sum { .. } => Some(Event::Summed),
            Action::Decide => Some(Event::Decided(Verdict::Commit)),
            _ => None,
        };
        actions.extend(event.into_iter().flat_map(|event| scheduler.on(Duration::ZERO, event)));
        all.push(action);
    }
    all
}

#[test]
fn one_worker_exchanges_nothing_and_runs_up_to_the_last_cut_in_one_go() {
    let all = orders(1, Job { segments: 4, few_at_once: false, ..job(3, true) });
    assert!(!all.iter().any(|action| matches!(action, Action::Sum { .. })), "{all:?}");
    let runs = all.iter().filter_map(|action| match action {
        Action::Run { segments, group, .. } => Some((segments.clone(), group.run.is_whole())),
        _ => None,
    });
    assert_eq!(runs.collect::<Vec<_>>(), [(0..3, true), (3..4, true)]);
}

/// A plan for an audit alone would have kernels of its own to compile.
#[test]
fn one_worker_makes_a_step_again_with_the_plan_that_it_has() {
    let plan = |roles| {
        let all = orders(1, Job { segments: 3, few_at_once: false, roles, ..job(3, true) });
        let run = all.into_iter().find_map(|action| match action {
            Action::Load { run, .. } => Some(run),
            _ => None,
        });
        run.unwrap()
    };
    assert_eq!(plan(Roles::Rotated(1)), plan(Roles::Usual));
    // Alone, a worker gives its sums to the host, so that they can be compared with another one's.
    assert_ne!(plan(Roles::Alone(0)), plan(Roles::Usual));
}

#[test]
fn who_has_no_shards_runs_only_where_the_state_changes() {
    let runs = |changes_state| {
        let all = orders(2, job(1, changes_state));
        let runs = all.into_iter().filter_map(|action| match action {
            Action::Run { worker, group, .. } => Some((worker, group.shards.len(), group.run.shards)),
            _ => None,
        });
        runs.collect::<Vec<_>>()
    };
    assert_eq!(runs(false), [(0, 1, 1), (0, 1, 1)]);
    // With one more shard, which is empty, the run of the only worker is not whole: its sums come to the
    // host.
    assert_eq!(runs(true), [(0, 1, 2), (1, 0, 2), (0, 1, 2), (1, 0, 2)]);
}

/// On a busy machine, where half of the steps take up to three times as long as they should, shards are
/// rarely assigned anew, since that means plans to load.
#[test]
fn noise_does_not_move_shards_about() {
    let mut draw = Draw(11);
    let mut workers = Workers::new(2, policy());
    let job = Job { few_at_once: false, ..job(32, true) };
    let mut seen: Vec<Vec<Range<usize>>> = Vec::new();
    for step in 4..60 {
        let ranges = workers.assign(Assignment::Speed, &job, vec![0, 1], step);
        let ranges: Vec<Range<usize>> = ranges.into_values().collect();
        for (worker, range) in ranges.iter().enumerate() {
            let disturbed = if draw.once_in(2) { 1.0 + 2.0 * draw.unit() } else { 1.0 };
            let seconds = (8 * range.len()) as f64 * [1e-3, 3e-3][worker] * disturbed;
            workers.saw(worker, 0, 8 * range.len(), Duration::from_secs_f64(seconds));
        }
        seen.push(ranges);
    }
    let moved = seen.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(moved <= 18, "moved {moved} times in {} steps: {seen:?}", seen.len());
    let quick: usize = seen[10..].iter().map(|ranges| ranges[0].len()).sum();
    let share = quick as f64 / (32 * seen[10..].len()) as f64;
    assert!((0.65..0.85).contains(&share), "{share:.2} of the shards, not three quarters");
}
