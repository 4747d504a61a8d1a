//! Seeded schedules of several ranks, of which some are lost, slow or cut off between any two messages: every
//! step commits on all that are left or on none, with the same bytes, and nothing waits forever.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_cluster::{Cluster, ClusterError, Fault, Problem, Script, Sum, threads};
use unisono_graph::tree;

const STEPS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(5);

/// How a rank ended, and the sums of the steps that it committed.
type Ended = (Vec<Vec<f32>>, Result<(), ClusterError>);

/// The lengths of the two buckets of a step.
const BUCKETS: [usize; 2] = [5, 1];

fn value(step: usize, bucket: usize, shard: usize, element: usize) -> f32 {
    let mixed = (step * 31 + bucket * 17 + shard * 7 + element * 13) % 101;
    mixed as f32 * 0.1 - 4.7
}

fn expected(step: usize, shards: usize) -> Vec<f32> {
    let sum = |bucket: usize, element: usize| {
        tree::sum(&(0..shards).map(|shard| value(step, bucket, shard, element)).collect::<Vec<_>>())
    };
    BUCKETS
        .iter()
        .enumerate()
        .flat_map(|(b, &len)| (0..len).map(move |e| (b, e)))
        .map(|(b, e)| sum(b, e))
        .collect()
}

/// Makes a step up to its commit. Returns its sums.
fn attempt(cluster: &Cluster, step: usize, shards: usize) -> Result<Vec<f32>, ClusterError> {
    let runs: Arc<Vec<Range<usize>>> = Arc::new(cluster.runs(shards, &[]));
    for (bucket, &len) in BUCKETS.iter().enumerate() {
        let blocks: Vec<f32> = tree::blocks(runs[cluster.place()].clone(), shards)
            .into_iter()
            .flat_map(|block| {
                (0..len).map(move |element| {
                    tree::sum(
                        &block.clone().map(|shard| value(step, bucket, shard, element)).collect::<Vec<_>>(),
                    )
                })
            })
            .collect();
        cluster
            .begin_exchange(Sum { bucket, len, leaves: shards, shards, runs: Arc::clone(&runs) }, &blocks)?;
    }
    let mut sums = Vec::new();
    for bucket in 0..BUCKETS.len() {
        sums.extend(cluster.finish_exchange(bucket)?);
    }
    let outputs = cluster.gather_once("outputs", &[cluster.rank() as u8])?;
    assert!(outputs.iter().all(|(rank, record)| record == &[*rank as u8]));
    cluster.gather_once("agreement", b"ready")?;
    Ok(sums)
}

fn run(cluster: &Cluster, shards: usize, committed: &mut Vec<Vec<f32>>) -> Result<(), ClusterError> {
    for step in 0..STEPS {
        cluster.begin()?;
        let sums = loop {
            match attempt(cluster, step, shards) {
                Err(ClusterError::Changed) => {}
                other => break other?,
            }
        };
        committed.push(sums);
        let all = cluster.gather("steps", &(step as u64).to_le_bytes())?;
        assert!(
            all.iter().all(|(_, record)| record == &(step as u64).to_le_bytes()),
            "ranks are at different steps"
        );
    }
    cluster.conclude(None).map(drop)
}

fn play(ranks: usize, shards: usize, script: Script) -> Vec<Ended> {
    let clusters = threads(ranks, script);
    std::thread::scope(|scope| {
        let one = |cluster: Cluster| {
            move || {
                cluster.set_deadline(DEADLINE);
                let mut committed = Vec::new();
                let ended = run(&cluster, shards, &mut committed);
                (committed, ended)
            }
        };
        let running: Vec<_> = clusters.into_iter().map(|cluster| scope.spawn(one(cluster))).collect();
        running.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

fn check(seed: u64) {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
    let (ranks, shards) = (2 + draw.below(3), 1 + draw.below(9));
    // A rank sends about thirty messages for each other rank.
    let after = |draw: &mut Draw| draw.below(24 * (ranks - 1) + 4);
    let mut faults = Vec::new();
    for _ in 0..draw.below(4) {
        let (rank, after) = (draw.below(ranks), after(&mut draw));
        faults.push(match draw.below(6) {
            0 => Fault::CutOff { rank, after },
            1 => Fault::Slow { rank, after, by: DEADLINE / 20 * (1 + draw.below(3) as u32) },
            2 => Fault::Slow { rank, after, by: DEADLINE * 4 },
            _ => Fault::Lost { rank, after },
        });
    }
    let is_silent = faults.iter().any(|fault| match fault {
        Fault::CutOff { .. } => true,
        Fault::Slow { by, .. } => *by >= DEADLINE,
        _ => false,
    });
    let ended = play(ranks, shards, Script { seed, faults: faults.clone() });
    let told = format!("seed {seed}, {ranks} ranks, {shards} shards, {faults:?}: {ended:?}");
    for (committed, end) in &ended {
        for (step, sums) in committed.iter().enumerate() {
            assert_eq!(sums, &expected(step, shards), "{told}");
        }
        assert!(end.is_err() || committed.len() == STEPS, "{told}");
    }
    let was_lost = |rank: usize| {
        faults.iter().any(|fault| matches!(fault, Fault::Lost { rank: lost, .. } if *lost == rank))
    };
    let staying = ended.iter().enumerate().filter(|(rank, _)| !was_lost(*rank));
    // Without silence, whoever is not lost goes on to the end, unless half of the ranks are lost or more:
    // those that are left may then be the part that is cut off.
    let lost = (0..ranks).filter(|rank| was_lost(*rank)).count();
    for (_, (_, end)) in staying.filter(|_| !is_silent) {
        let stops = 2 * lost >= ranks && matches!(end, Err(ClusterError::Minority { .. }));
        assert!(end == &Ok(()) || stops, "{told}");
    }
    // A rank that ends because another was silent is lost for the others, which may go on without both. That
    // all who go on have committed the same steps is what `run` asserts after each commit.
}

/// A thousand schedules, and fifty thousand where `UNISONO_LONG` is set.
#[test]
fn steps_commit_on_all_that_are_left_or_on_none() {
    let half: u64 = if std::env::var_os("UNISONO_LONG").is_some() { 25_000 } else { 500 };
    std::thread::scope(|scope| {
        for odd in 0..2 {
            scope.spawn(move || (0..half).for_each(|i| check(2 * i + odd)));
        }
    });
}

/// Gathers once more, and is done when that has happened. Returns the records.
fn last(cluster: &Cluster) -> Result<Vec<(usize, Vec<u8>)>, ClusterError> {
    cluster.set_deadline(DEADLINE);
    cluster.begin()?;
    cluster.gather_once("the first", b"first")?;
    loop {
        match cluster.gather_once("the last", &[cluster.rank() as u8]) {
            Err(ClusterError::Changed) => {}
            other => return other,
        }
    }
}

/// A rank that is done right after a gather has ended its part when the others hear of a loss in between: it
/// tells them that the gather has happened.
#[test]
fn the_last_gather_has_happened_on_all_that_are_left_or_on_none() {
    let mut with = [0; 2];
    for (ranks, seed) in [3, 4, 5].into_iter().flat_map(|ranks| (0..60).map(move |seed| (ranks, seed))) {
        for (rank, after) in (0..ranks).flat_map(|rank| (0..ranks).map(move |sent| (rank, ranks - 1 + sent)))
        {
            let faults = vec![Fault::Lost { rank, after }];
            let clusters = threads(ranks, Script { seed, faults });
            let ended: Vec<_> = std::thread::scope(|scope| {
                let running: Vec<_> = clusters.into_iter().map(|c| scope.spawn(move || last(&c))).collect();
                running.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            let told = format!("{ranks} ranks, seed {seed}, rank {rank} lost after {after}: {ended:?}");
            let left: Vec<_> = (0..ranks).filter(|other| *other != rank).map(|at| &ended[at]).collect();
            // It may be lost while the first gather still waits for it, and after the last one.
            if left.iter().all(|end| matches!(end, Err(ClusterError::Changed))) {
                continue;
            }
            let records = left[0].as_ref().unwrap_or_else(|error| panic!("{error}: {told}"));
            assert!(left.iter().all(|end| end.as_ref() == Ok(records)), "{told}");
            with[usize::from(records.len() == ranks)] += 1;
        }
    }
    assert!(with[0] > 100 && with[1] > 100, "{with:?}");
}

/// A network is cut in two between any two messages, and each part sees the other one as lost: the larger
/// part goes on, or of two halves the one with the first rank, and never both.
#[test]
fn of_two_parts_of_a_network_only_one_goes_on() {
    let mut stopped = 0;
    for (ranks, first) in [(2, 1), (3, 1), (3, 2), (4, 2), (4, 1), (4, 3), (5, 2), (5, 3)] {
        for after in 0..20 * (ranks - 1) {
            let rank = after % ranks;
            let faults = vec![Fault::Parted { rank, after, first }];
            let ended = play(ranks, 7, Script { seed: after as u64, faults });
            let told = format!("{ranks} ranks, the second part from {first} on, after {after}: {ended:?}");
            let wins = |rank: usize| (rank < first) == (2 * first >= ranks);
            for (rank, (committed, end)) in ended.iter().enumerate() {
                for (step, sums) in committed.iter().enumerate() {
                    assert_eq!(sums, &expected(step, 7), "{told}");
                }
                match end {
                    Ok(()) => assert!(wins(rank) || committed.len() == STEPS, "{told}"),
                    Err(ClusterError::Minority { .. }) => {
                        assert!(!wins(rank), "{told}");
                        stopped += 1;
                    }
                    // It hears of another one's end before it hears of the cut.
                    Err(ClusterError::Other { why, .. }) if why.contains("may continue without") => {
                        assert!(!wins(rank), "{told}");
                    }
                    Err(error) => panic!("{error}: {told}"),
                }
            }
        }
    }
    assert!(stopped > 100, "{stopped} ranks stopped");
}

/// Forty machines, and a thousand where `UNISONO_LONG` is set: three are lost in different steps, one is
/// slow.
#[test]
fn many_machines_lose_some() {
    let ranks = if std::env::var_os("UNISONO_LONG").is_some() { 1000 } else { 40 };
    let lost = |rank: usize, step: usize| Fault::Lost { rank, after: step * 6 * ranks + rank };
    let slow = Fault::Slow { rank: 5, after: 3 * ranks, by: DEADLINE / 50 };
    let faults = vec![lost(7, 0), lost(ranks - 1, 1), lost(ranks / 2, 1), slow];
    let ended = play(ranks, 2 * ranks + 3, Script { seed: 1, faults });
    let gone = [7, ranks - 1, ranks / 2];
    for (rank, (committed, end)) in ended.iter().enumerate().filter(|(rank, _)| !gone.contains(rank)) {
        assert_eq!((end, committed.len()), (&Ok(()), STEPS), "rank {rank}");
        for (step, sums) in committed.iter().enumerate() {
            assert_eq!(sums, &expected(step, 2 * ranks + 3), "rank {rank}");
        }
    }
}

#[test]
fn the_same_bytes_for_any_number_of_ranks_and_the_bytes_sent_are_as_computed() {
    for ranks in 2..6 {
        for shards in [1, 3, 8, 13] {
            let clusters = threads(ranks, Script::default());
            std::thread::scope(|scope| {
                for cluster in clusters {
                    scope.spawn(move || {
                        assert_eq!(attempt(&cluster, 2, shards), Ok(expected(2, shards)));
                        let runs = cluster.runs(shards, &[]);
                        let wanted: u64 = BUCKETS
                            .iter()
                            .map(|&len| unisono_cluster::bytes_sent(len, shards, &runs, cluster.place()))
                            .sum();
                        assert_eq!(cluster.bytes_sent(), wanted, "{ranks} ranks, {shards} shards");
                    });
                }
            });
        }
    }
}

#[test]
fn a_silent_rank_is_named_by_all_others() {
    for after in 0..12 {
        let ended = play(3, 8, Script { seed: after as u64, faults: vec![Fault::CutOff { rank: 2, after }] });
        for (_, end) in &ended[..2] {
            let text = end.as_ref().unwrap_err().to_string();
            assert!(text.starts_with("no answer from rank 2 (thread2) for "), "after {after}: {text}");
        }
    }
}

/// Two ranks that add up different buckets wait for each other.
#[test]
fn ranks_that_wait_for_each_other_name_each_other() {
    let clusters = threads(2, Script::default());
    std::thread::scope(|scope| {
        for cluster in clusters {
            scope.spawn(move || {
                cluster.set_deadline(DEADLINE);
                let (bucket, other) = (cluster.rank(), 1 - cluster.rank());
                let runs = Arc::new(vec![0..1, 1..2]);
                cluster
                    .begin_exchange(Sum { bucket, len: 2, leaves: 2, shards: 2, runs }, &[1.0, 2.0])
                    .unwrap();
                let text = cluster.finish_exchange(bucket).unwrap_err().to_string();
                let wanted = format!("no answer from rank {other} (thread{other}) for ");
                assert!(text.starts_with(&wanted), "{text}");
            });
        }
    });
}

/// Ranks that gather different things, or one of which adds up, hear of it at once.
#[test]
fn ranks_that_do_different_things_say_which() {
    for seed in 0..20 {
        let clusters = threads(3, Script { seed, ..Script::default() });
        std::thread::scope(|scope| {
            for cluster in clusters {
                scope.spawn(move || {
                    let what = if cluster.rank() == 1 { "the trace" } else { "the report" };
                    let text = cluster.gather(what, b"x").unwrap_err().to_string();
                    let wanted = "rank 1 (thread1) is at the trace, rank 0 (thread0) at the report: ";
                    assert!(text.starts_with(wanted), "{text}");
                    cluster.conclude(Some(&text.as_str().into())).unwrap();
                    let error = match cluster.rank() {
                        2 => cluster.gather("the trace", b"x").unwrap_err(),
                        _ => attempt(&cluster, 0, 7).unwrap_err(),
                    };
                    let text = error.to_string();
                    assert!(text.contains("rank 2 (thread2) is at the trace, rank "), "{text}");
                    cluster.conclude(Some(&text.as_str().into())).unwrap();
                });
            }
        });
    }
}

#[test]
fn what_differs_is_named_on_all_ranks() {
    let clusters = threads(3, Script::default());
    let wanted = "rank 2 (thread2): --global-batch 64, rank 0: 128";
    std::thread::scope(|scope| {
        for cluster in clusters {
            scope.spawn(move || {
                let batch = if cluster.rank() == 2 { "64" } else { "128" };
                let own =
                    [("--seed", "1"), ("--global-batch", batch)].map(|(a, b)| (a.to_owned(), b.to_owned()));
                assert_eq!(cluster.compare(&own), Err(ClusterError::Differs(wanted.into())));
                assert_eq!(cluster.compare(&own[..1]), Ok(()));
            });
        }
    });
}

/// What was begun before an error has no part in the sums after it.
#[test]
fn a_step_after_an_error_is_right() {
    for seed in 0..20 {
        let clusters = threads(3, Script { seed, ..Script::default() });
        std::thread::scope(|scope| {
            for cluster in clusters {
                scope.spawn(move || {
                    if cluster.rank() == 1 {
                        cluster.conclude(Some(&"not now".into())).unwrap();
                    } else {
                        assert!(attempt(&cluster, 0, 7).is_err());
                        cluster.conclude(None).unwrap();
                    }
                    assert_eq!(attempt(&cluster, 1, 7), Ok(expected(1, 7)), "seed {seed}");
                });
            }
        });
    }
}

#[test]
fn an_error_of_one_rank_ends_what_the_others_do() {
    let clusters = threads(3, Script::default());
    std::thread::scope(|scope| {
        for cluster in clusters {
            scope.spawn(move || {
                let problem: Option<Problem> = if cluster.rank() == 1 {
                    Some("no such file".into())
                } else {
                    let error = cluster.gather("x", b"x").unwrap_err();
                    assert_eq!(error.to_string(), "rank 1 (thread1): no such file");
                    None
                };
                let all = cluster.conclude(problem.as_ref()).unwrap();
                assert_eq!(all, [(0, None), (1, Some("no such file".into())), (2, None)]);
                assert_eq!(cluster.gather("y", b"y").unwrap().len(), 3);
            });
        }
    });
}

/// A rank that refuses to run says so in whatever way it ends, and the others know of it.
#[test]
fn a_refusal_of_one_rank_is_known_to_the_others() {
    let refusal = || Problem { why: "--seed 3".into(), is_refusal: true };
    for leaves in [true, false] {
        let clusters = threads(3, Script::default());
        std::thread::scope(|scope| {
            for cluster in clusters {
                scope.spawn(move || match cluster.rank() {
                    1 if leaves => cluster.leave(refusal()),
                    1 => drop(cluster.conclude(Some(&refusal()))),
                    _ => {
                        let error = cluster.gather("x", b"x").unwrap_err();
                        let wanted = ClusterError::Other {
                            rank: cluster.name(1),
                            why: "--seed 3".into(),
                            is_refusal: true,
                        };
                        assert_eq!(error, wanted);
                        if !leaves {
                            cluster.conclude(None).unwrap();
                        }
                    }
                });
            }
        });
    }
}
