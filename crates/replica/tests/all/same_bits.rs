//! The state and the outputs are the same bytes, whichever replicas computed them.

use crate::common::*;
use unisono_replica::{Assignment, Feed, Verdict};

#[test]
fn any_number_of_replicas_gives_the_same_bytes() {
    let one = run(&mut replicas(1, options()));
    assert!(
        one.1.iter().all(|state| state.chunks(4).any(|x| f32::from_le_bytes(x.try_into().unwrap()) != 0.0))
    );
    for (samples, outputs) in SAMPLES.iter().zip(&one.0) {
        assert_eq!(outputs.floats(0).unwrap().len(), *samples);
        let loss = outputs.floats(1).unwrap()[0];
        assert!((loss - outputs.floats(0).unwrap().iter().sum::<f32>()).abs() < 1e-3 * loss.abs());
        assert!((outputs.floats(2).unwrap()[0] - loss / *samples as f32).abs() < 1e-5 * loss.abs());
    }
    for count in [2, 3, 5] {
        let mut several = replicas(count, options());
        several.prepare(0, &[BATCH, 7]).unwrap();
        assert!(run(&mut several) == one, "{count} replicas");
        let threads: std::collections::HashSet<_> = several.reports().iter().map(|r| r.thread).collect();
        assert_eq!(threads.len(), count);
        assert!(several.reports().iter().all(|r| r.shards > 0 && r.steps == SAMPLES.len() as u64));
        let samples: u64 = several.reports().iter().map(|r| r.samples).sum();
        assert_eq!(samples, SAMPLES.iter().sum::<usize>() as u64);
    }
}

#[test]
fn any_assignment_gives_the_same_bytes() {
    let even = run(&mut replicas(1, options()));
    for seed in 0..4 {
        let how = options().with(|o| o.assignment = Assignment::Shuffled(seed));
        assert!(run(&mut replicas(3, how)) == even, "seed {seed}");
    }
}

#[test]
fn more_replicas_than_shards_idle_and_still_commit() {
    let few = options().with(|o| {
        o.shards = 2;
        o.assignment = Assignment::Even;
    });
    let one = run(&mut replicas(1, few.clone()));
    let mut five = replicas(5, few);
    assert!(run(&mut five) == one);
    assert_eq!(five.len(), 5);
    let shards: Vec<u64> = five.reports().iter().map(|r| r.shards).collect();
    assert_eq!(shards[2..], [0, 0, 0]);
    let single = options().with(|o| o.shards = 1);
    assert!(run(&mut replicas(1, single.clone())) == run(&mut replicas(2, single)));
}

#[test]
fn programs_that_commit_nothing_go_the_same_way() {
    let mut answers = Vec::new();
    for count in [1, 2, 4] {
        let mut replicas = replicas(count, options());
        let mut all = Vec::new();
        for samples in [BATCH, 5, 1] {
            let feed = Feed { rows: samples, inputs: vec![rows(samples, IN, 3)], ..Feed::default() };
            let predicted = replicas.step(1, &feed, &mut |o| {
                assert_eq!(o.words(0), None);
                Verdict::Commit
            });
            let predicted = predicted.unwrap().outputs;
            assert_eq!(predicted.floats(0).unwrap().len(), samples * OUT);
            let evaluated = replicas.step(2, &feed, &mut |o| {
                assert!(o.floats(0).is_some());
                Verdict::Commit
            });
            let evaluated = evaluated.unwrap().outputs;
            let sum: f32 = predicted.floats(0).unwrap().iter().sum();
            assert!((evaluated.floats(0).unwrap()[0] - sum).abs() < 1e-3);
            assert_eq!(evaluated.floats(1).unwrap()[0], evaluated.floats(0).unwrap()[0] * 0.5);
            all.push((predicted, evaluated));
        }
        answers.push(all);
    }
    assert!(answers.iter().all(|a| *a == answers[0]));
}

#[test]
fn a_skipped_step_changes_nothing() {
    for count in [1, 3] {
        let mut replicas = replicas(count, options());
        step(&mut replicas, 0, BATCH).unwrap();
        let before = all_states(&mut replicas);
        let mut asked = 0;
        let skipped = replicas.step(0, &batch(1, BATCH), &mut |outputs| {
            asked += 1;
            assert!(outputs.floats(1).unwrap()[0] > 0.0);
            Verdict::Skip
        });
        let skipped = skipped.unwrap();
        assert_eq!((skipped.committed, asked), (false, 1));
        assert!(all_states(&mut replicas) == before);
        assert!(step(&mut replicas, 1, BATCH).unwrap().committed);
        assert!(all_states(&mut replicas) != before);
        replicas.check_digests().unwrap();
    }
}

#[test]
fn any_batch_and_any_shards_do() {
    for batch_size in 1..=17 {
        let (shards, count) = (1 + batch_size * 5 % 9, 1 + batch_size * 3 % 8);
        let how = options().with(|o| {
            o.global_batch = batch_size;
            o.shards = shards;
        });
        let history = |count| {
            let mut replicas = replicas(count, how.clone());
            let sizes = [batch_size, 1 + batch_size / 2, 1];
            let outputs = sizes.map(|samples| step(&mut replicas, samples, samples).unwrap().outputs);
            replicas.check_digests().unwrap();
            let finite = |o: &unisono_replica::Outputs| o.floats(0).unwrap().iter().all(|x| x.is_finite());
            assert!(outputs.iter().all(finite));
            (outputs, all_states(&mut replicas))
        };
        assert!(history(1) == history(count), "batch {batch_size}, {shards} shards, {count} replicas");
    }
}
