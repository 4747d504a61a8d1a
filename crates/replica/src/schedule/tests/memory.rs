//! Workers with memory for some of the shards only.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::*;
use super::simulation::{Fate, Simulation, Step as Wanted};
use super::{Draw, job, policy};

/// The faster of two workers has memory for half of the shards. After it has answered so, it is assigned no
/// more, and neither leaves.
#[test]
fn whoever_has_no_room_for_more_shards_goes_on_with_those_it_had() {
    for shards_at_once in [None, Some(4), Some(1)] {
        for few_at_once in [false, true] {
            let policy = Policy { shards_at_once, ..policy() };
            let mut simulation = Simulation::new(2, policy, Fate::default(), Draw(5));
            simulation.speeds(&[(3e3, 0.0), (1e3, 0.0)]);
            simulation.rooms(&[4, 8]);
            let wanted = Wanted { job: Job { few_at_once, ..job(8, true) }, skip: false, not_finite: false };
            (0..16).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
            assert_eq!(
                (simulation.lost, simulation.committed),
                (0, 16),
                "{shards_at_once:?}, few at once: {few_at_once}"
            );
            // The workers have memory for all shards together, but none has memory for all of them.
            simulation.lose(1);
            assert_eq!(
                simulation.step(&wanted),
                Ok(few_at_once),
                "{shards_at_once:?}, few at once: {few_at_once}"
            );
        }
    }
}

/// A program fills resident memory, and another one reads it where it is. One of two workers has no memory
/// for the even cuts of the first. Both programs then have the same cuts.
#[test]
fn programs_with_even_cuts_have_them_in_common_where_a_worker_has_a_limit() {
    let mut simulation = Simulation::new(2, policy(), Fate::default(), Draw(5));
    let shares = |simulation: &mut Simulation, program, shards, rooms: &[usize]| {
        simulation.rooms(rooms);
        let job = Job { program, roles: Roles::Even, few_at_once: false, ..job(shards, false) };
        assert_eq!(simulation.step(&Wanted { job, skip: false, not_finite: false }), Ok(true));
        simulation.shares.values().map(|share| share.0).collect::<Vec<_>>()
    };
    assert_eq!(shares(&mut simulation, 0, 4, &[8, 2]), [2, 2]);
    assert_eq!(shares(&mut simulation, 0, 8, &[8, 2]), [6, 2]);
    // The other program would have memory for more.
    assert_eq!(shares(&mut simulation, 1, 8, &[8, 8]), [6, 2]);
    assert_eq!(shares(&mut simulation, 0, 8, &[8, 2]), [6, 2]);
    assert_eq!(simulation.lost, 0);
    // Nothing limits the other one when the first is forgotten.
    simulation.forget(0..1);
    assert_eq!(shares(&mut simulation, 1, 8, &[8, 8]), [4, 4]);
}

/// The larger of two workers is lost while it runs. The other one has memory for its shards a few at once,
/// and learns so when it runs them.
#[test]
fn whoever_has_no_room_for_shards_of_one_that_is_lost_runs_them_a_few_at_once() {
    for shards_at_once in [None, Some(6), Some(4)] {
        let policy = Policy { shards_at_once, ..policy() };
        let mut simulation = Simulation::new(2, policy, Fate::default(), Draw(5));
        simulation.speeds(&[(3e3, 0.0), (1e3, 0.0)]);
        simulation.rooms(&[8, 4]);
        let wanted = Wanted { job: job(8, true), skip: false, not_finite: false };
        (0..8).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
        simulation.fail(0);
        assert_eq!((simulation.step(&wanted), simulation.lost), (Ok(true), 1), "{shards_at_once:?}");
        assert_eq!((simulation.step(&wanted), simulation.lost), (Ok(true), 1), "{shards_at_once:?}");
    }
}

/// The smaller of two workers has no memory for the other one's shards, which it is given in an audit alone.
/// When it has to run all shards, it runs as many at once as it did before.
#[test]
fn what_a_worker_could_not_load_in_an_audit_is_not_what_it_could_load() {
    let mut simulation = Simulation::new(2, policy(), Fate::default(), Draw(5));
    simulation.speeds(&[(3e3, 0.0), (1e3, 0.0)]);
    simulation.rooms(&[8, 4]);
    let wanted = Wanted { job: job(8, true), skip: false, not_finite: false };
    (0..8).for_each(|_| assert!(simulation.step(&wanted).unwrap()));
    let audit = Job { roles: Roles::Rotated(1), ..job(8, true) };
    assert_eq!(simulation.step(&Wanted { job: audit, ..wanted.clone() }), Ok(true));
    simulation.lose(0);
    assert_eq!((simulation.step(&wanted), simulation.lost), (Ok(true), 0));
}

/// An audit compares what two workers make of a shard, also where their memory allows no other the shards of
/// the largest.
#[test]
fn limits_do_not_keep_a_step_that_is_made_again_where_it_was() {
    let mut draw = Draw(13);
    for _ in 0..2000 {
        let all = 2 + draw.below(14);
        let limits: Vec<usize> = (0..2 + draw.below(3)).map(|_| 1 + draw.below(all)).collect();
        if limits.iter().sum::<usize>() < all {
            continue;
        }
        let job = Job { few_at_once: false, ..job(all, true) };
        let mut workers = Workers::new(limits.len(), policy());
        for (worker, &limit) in limits.iter().enumerate() {
            let run = Arc::new(Run { first: 0, sizes: vec![8; limit], shards: all });
            workers.loaded(worker, 0, run);
            assert!(workers.lower_limit(worker, (0, Roles::Usual), all + 1, all));
            workers.saw(worker, 0, 8, Duration::from_millis(1 + draw.below(9) as u64));
        }
        let usual = workers.assign(Assignment::Speed, &job, (0..limits.len()).collect(), 4);
        let of = |ranges: &BTreeMap<usize, Range<usize>>, shard| {
            ranges.iter().find(|(_, range)| range.contains(&shard)).map(|(&worker, _)| worker)
        };
        let (mut ran, mut met) = (BTreeSet::new(), BTreeSet::new());
        let turns: Vec<_> =
            (1..limits.len()).map(|places| workers.rotated(&job, usual.clone(), places)).collect();
        for again in &turns {
            assert_eq!(again.values().map(Range::len).sum::<usize>(), all, "{limits:?}: {again:?}");
            assert!(
                again.iter().all(|(&worker, range)| range.len() <= limits[worker]),
                "{limits:?}: {again:?}"
            );
        }
        for shard in 0..all {
            let runners: Vec<usize> =
                std::iter::once(&usual).chain(&turns).filter_map(|of_turn| of(of_turn, shard)).collect();
            assert_eq!(runners.len(), limits.len());
            if runners.iter().any(|&worker| worker != runners[0]) {
                met.extend(runners.iter().copied());
            }
            ran.extend(runners);
        }
        assert_eq!(ran, met, "{limits:?}: {usual:?}, {turns:?}");
    }
}
