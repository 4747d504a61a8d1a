//! Audits find a device that computes wrong sums, and name it.

mod common;

use common::*;
use unisono_replica::{Assignment, Options, ReplicaError};

/// Returns the error of the first step that has one, and the number of that step.
fn first_error(count: usize, options: Options) -> (u64, ReplicaError) {
    let mut replicas = replicas(count, options);
    for at in 0..40 {
        let before = all_states(&mut replicas);
        if let Err(error) = step(&mut replicas, at, BATCH) {
            assert!(all_states(&mut replicas) == before, "a step that failed has changed the state");
            return (at as u64, error);
        }
    }
    panic!("no error");
}

#[test]
fn a_flipped_bit_of_a_gradient_is_found_and_its_replica_named() {
    // The fault occurs once: run again, the replica disagrees with itself, and a third one confirms it.
    for (count, verdict) in
        [(2, "it disagrees with itself: replica 1 ("), (3, "disagrees with replica 1: replica 1 (")]
    {
        // The fault occurs in every step, until the shard that is drawn is in the sum that is wrong.
        let point = |step| (format!("replica-1:step-{step}"), "1*return(gradient)".to_owned());
        let audited = with_points(&(0..40).map(point).collect::<Vec<_>>());
        let (at, error) = first_error(
            count,
            audited.with(|o| {
                o.audit_every = 1;
                o.assignment = Assignment::Even;
            }),
        );
        let ReplicaError::Audit { step, shards, .. } = &error else { panic!("{error}") };
        assert_eq!(at, *step);
        assert!(!shards.is_empty());
        let text = error.to_string();
        assert!(text.contains(verdict) && text.ends_with("is wrong"), "{text}");
    }
}

#[test]
fn audits_find_nothing_where_nothing_is_wrong_and_do_not_show() {
    let whole = run(&mut replicas(1, options()));
    for (count, audit_every) in [(2, 1), (3, 1), (5, 2)] {
        let audited = run(&mut replicas(count, options().with(|o| o.audit_every = audit_every)));
        assert!(audited == whole, "{count} replicas, every {audit_every} steps");
    }
}

#[test]
fn an_auditor_may_be_lost_too() {
    let whole = run(&mut replicas(1, options()));
    for lost in 0..3 {
        let points = [(format!("replica-{lost}:step-3"), "1*return->return(lose)".to_owned())];
        let mut three = replicas(3, with_points(&points).with(|o| o.audit_every = 1));
        assert!(run(&mut three) == whole, "replica {lost}");
    }
}
