//! The promise: a run has the same bits on any number of replicas, with any number of loader threads and any
//! assignment of shards.

use std::collections::BTreeSet;

use proptest::prelude::*;
use unisono::{Assignment, Error, History};
use unisono_tests::{loader, perceptron};

/// Returns the digest and the history of a short run.
fn train(
    replicas: usize,
    threads: usize,
    assignment: Assignment,
    [samples, batch, shards]: [usize; 3],
) -> Result<(String, History), Error> {
    let data = loader(samples, 5)?.threads(threads);
    let builder = perceptron(16).replicas(replicas).global_batch(batch).shards(shards).assignment(assignment);
    let mut trainer = builder.digest_every(1).build(&data.fields()?)?;
    trainer.fit(&data, Some(&loader(20, 6)?), 2)?;
    trainer.check_replicas()?;
    let threads: BTreeSet<String> = trainer.reports().iter().map(|r| format!("{:?}", r.thread)).collect();
    assert_eq!(threads.len(), replicas, "every replica has a thread of its own");
    if shards >= replicas && batch >= shards {
        assert!(
            trainer.reports().iter().all(|r| r.shards > 0),
            "every replica runs shards: {:?}",
            trainer.reports()
        );
    }
    for epoch in trainer.history() {
        let finite =
            |e: &unisono::Evaluation| e.loss.is_finite() && e.metrics.iter().all(|m| m.1.is_finite());
        assert!(finite(&epoch.train) && epoch.validation.as_ref().is_some_and(finite), "{epoch:?}");
    }
    Ok((trainer.state_sha256()?, trainer.history().clone()))
}

#[test]
fn replicas_threads_and_assignment_do_not_show() {
    let sizes = [70, 16, 8];
    let alone = train(1, 1, Assignment::Even, sizes).unwrap();
    for (replicas, threads) in [(2, 4), (3, 1), (7, 4)] {
        let together = train(replicas, threads, Assignment::Shuffled(replicas as u64), sizes).unwrap();
        assert_eq!(alone, together, "{replicas} replicas, {threads} loader threads");
    }
}

#[test]
fn the_seed_and_the_shards_do_show() {
    let digest = |sizes| train(1, 1, Assignment::Even, sizes).unwrap().0;
    assert_ne!(digest([70, 16, 8]), digest([70, 16, 4]), "shards are part of the run");
    assert_ne!(digest([70, 16, 8]), digest([70, 8, 8]), "so is the global batch");
}

fn cases() -> u32 {
    if std::env::var_os("UNISONO_LONG").is_some() { 200 } else { 10 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_batch_any_shards_any_replicas(
        batch in 1usize..=17,
        shards in 1usize..=12,
        replicas in 2usize..=8,
        samples in 1usize..40,
        seed in 0u64..1000,
    ) {
        let sizes = [samples, batch, shards];
        let alone = train(1, 1, Assignment::Even, sizes).unwrap();
        let together = train(replicas, 2, Assignment::Shuffled(seed), sizes).unwrap();
        prop_assert_eq!(alone, together);
    }
}

#[test]
fn two_trainers_in_one_process_do_not_know_of_each_other() {
    let run = || train(2, 1, Assignment::Even, [30, 8, 4]).unwrap();
    let first = run();
    let second = run();
    let (left, right) = std::thread::scope(|scope| {
        let (left, right) = (scope.spawn(run), scope.spawn(run));
        (left.join().unwrap(), right.join().unwrap())
    });
    assert_eq!(first, second, "one after the other");
    assert_eq!(first, left, "side by side");
    assert_eq!(first, right, "side by side");
}
