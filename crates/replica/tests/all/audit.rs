//! Audits find replicas that compute wrongly, tell which these are, and do not show where nothing is wrong.

use crate::common::*;
use unisono_replica::{Assignment, Audits, Options, Outputs, ReplicaError, Replicas};

/// A run's outputs and its state.
type Bytes = (Vec<Outputs>, Vec<Vec<u8>>);

/// What became of a run that goes back to the last audited state whenever something is wrong.
#[derive(Debug)]
struct Ended {
    bytes: Bytes,
    /// The errors with the number of steps done before.
    errors: Vec<(usize, ReplicaError)>,
    left: Vec<usize>,
}

/// Runs the steps of [`SAMPLES`] twice over, the last one audited. After an error of an audit the run goes
/// back to the last state that passed one.
fn run_trusting(replicas: &mut Replicas) -> Result<Ended, ReplicaError> {
    let steps: Vec<usize> = SAMPLES.iter().chain(&SAMPLES).copied().collect();
    let mut trusted = (0, all_states(replicas));
    let (mut outputs, mut errors): (Vec<Outputs>, Vec<_>) = Default::default();
    while outputs.len() < steps.len() {
        let at = outputs.len();
        if at + 1 == steps.len() {
            replicas.audit_next(0);
        }
        match step(replicas, at, steps[at]) {
            Ok(outcome) => {
                trusted = outcome.audit.map_or(trusted, |audit| (at, audit.before.to_vec()));
                outputs.push(outcome.outputs);
            }
            Err(error @ (ReplicaError::Audit { lasting: false, .. } | ReplicaError::Digests { .. })) => {
                errors.push((at, error));
                assert!(errors.len() < 20, "{errors:?}");
                outputs.truncate(trusted.0);
                for (index, tensor) in trusted.1.iter().enumerate() {
                    replicas.write_state(index, tensor)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    let left = replicas.left().iter().map(|left| left.replica).collect();
    Ok(Ended { bytes: (outputs, all_states(replicas)), errors, left })
}

fn undisturbed() -> Bytes {
    run_trusting(&mut replicas(1, options())).unwrap().bytes
}

fn auditing(options: Options, audits: Audits) -> Options {
    options.with(|o| (o.audits, o.assignment) = (audits, Assignment::Even))
}

#[test]
fn audits_find_nothing_where_nothing_is_wrong_and_do_not_show() {
    let whole = undisturbed();
    for (count, every) in [(1, 1), (1, 3), (2, 1), (3, 1), (5, 2)] {
        for assignment in [Assignment::Even, Assignment::Speed, Assignment::Shuffled(5)] {
            let options = options().with(|o| (o.audits, o.assignment) = (Audits::Every(every), assignment));
            let mut audited = replicas(count, options);
            let ended = run_trusting(&mut audited).unwrap();
            assert!(ended.bytes == whole && ended.errors.is_empty(), "{count} replicas, every {every} steps");
            assert!(audited.audits(0).passed >= 12 / (2 * every), "{:?}", audited.audits(0));
        }
    }
}

#[test]
fn a_replica_that_is_wrong_in_every_step_is_named_and_leaves_and_the_run_ends_in_the_right_bytes() {
    let whole = undisturbed();
    for (count, wrong, fault, how) in [
        (2, 1, "gradient", "known-answer"),
        (2, 0, "gradient", "known-answer"),
        (3, 1, "gradient", "alone, replica 0"),
        (3, 2, "exchange", "alone, replica 0"),
        (2, 1, "exchange", "known-answer"),
    ] {
        let point = (format!("replica-{wrong}"), format!("return({fault})"));
        let options = auditing(with_points(&[point]), Audits::Every(3));
        let ended = run_trusting(&mut replicas(count, options)).unwrap();
        assert!(ended.bytes == whole, "{fault} of {wrong} of {count}: {:?}", ended.errors);
        assert_eq!(ended.left, [wrong], "{:?}", ended.errors);
        let error = ended.errors[0].1.to_string();
        let says = error.contains(&format!("replica {wrong} is wrong"));
        assert!(says && (error.contains(how) || error.contains("more than half")), "{error}");
    }
}

#[test]
fn a_fault_that_occurs_once_in_an_audited_step_is_found_and_undone() {
    let whole = undisturbed();
    for count in [1, 2, 3] {
        for fault in ["gradient", "exchange", "state:0"] {
            // Sums are given back for segment 1.
            let at = if fault == "exchange" { ":segment-1" } else { "" };
            let points = [(format!("replica-0:step-4{at}"), format!("1*return({fault})"))];
            let ended = run_trusting(&mut replicas(count, auditing(with_points(&points), Audits::Every(1))));
            let ended = ended.unwrap();
            assert!(ended.bytes == whole, "{fault}, {count} replicas: {:?}", ended.errors);
            let found = !ended.errors.is_empty();
            // One replica that has all shards exchanges nothing in a step, and the last bit of one gradient
            // may be lost when it is added to the others.
            assert!(found || count == 1 || fault == "gradient", "{fault}, {count} replicas");
        }
    }
}

#[test]
fn a_state_that_differs_is_found_when_it_is_compared() {
    for count in [2, 3] {
        let points = [("replica-1:step-2".to_owned(), "1*return(state:0)".to_owned())];
        let mut faulty = replicas(count, with_points(&points));
        for at in 0..3 {
            step(&mut faulty, at, BATCH).unwrap();
        }
        let error = faulty.check_digests().unwrap_err();
        let ReplicaError::Digests { wrong, .. } = &error else { panic!("{error}") };
        assert_eq!(*wrong, if count == 3 { vec![1] } else { vec![] }, "{error}");
        assert_eq!(faulty.len(), 2);
    }
}

#[test]
fn replicas_that_differ_for_good_with_nothing_to_tell_which_is_right_are_refused() {
    // The fault is in the state, which the known-answer test does not look at.
    let points = [("replica-1".to_owned(), "return(state:0)".to_owned())];
    let mut faulty = replicas(2, auditing(with_points(&points), Audits::Every(1)));
    let before = all_states(&mut faulty);
    let error = step(&mut faulty, 0, BATCH).unwrap_err();
    let ReplicaError::Audit { wrong, lasting: true, .. } = &error else { panic!("{error}") };
    assert_eq!((wrong.len(), faulty.len()), (0, 2));
    assert!(error.to_string().contains("it is not known which replica is wrong"), "{error}");
    assert_eq!(faulty.read_state(1).unwrap(), before[1]);
}

#[test]
fn an_auditor_may_be_lost_too() {
    let whole = undisturbed();
    for lost in 0..3 {
        for nth in 1..5 {
            let action = format!("{nth}*off->return(lose)");
            let points = [(format!("replica-{lost}:step-3"), action)];
            let ended = run_trusting(&mut replicas(3, auditing(with_points(&points), Audits::Every(1))));
            let ended = ended.unwrap();
            assert!(ended.bytes == whole && ended.errors.is_empty(), "replica {lost}: {:?}", ended.errors);
        }
    }
}

#[test]
fn steps_that_change_no_state_are_audited_by_their_outputs() {
    for program in [1, 2] {
        let feed =
            |at| unisono_replica::Feed { inputs: batch(at, BATCH).inputs[..1].to_vec(), ..batch(at, BATCH) };
        let points = [("replica-1".to_owned(), "return(gradient)".to_owned())];
        let mut faulty = replicas(3, auditing(with_points(&points), Audits::Every(1)));
        let mut sound = replicas(1, options());
        let made = faulty.step(program, &feed(0), &mut commit);
        // Only the program with a sum has something that this fault changes.
        if program == 2 {
            let error = made.unwrap_err();
            assert!(error.to_string().contains("replica 1 is wrong"), "{error}");
            assert_eq!(faulty.len(), 2);
        }
        let again = faulty.step(program, &feed(0), &mut commit).unwrap();
        assert_eq!(again.outputs, sound.step(program, &feed(0), &mut commit).unwrap().outputs);
    }
}

/// What a replica had no memory for before a step, and runs a few shards at once instead, is no failure of
/// the step's audit.
#[test]
fn a_plan_that_was_too_large_before_the_step_postpones_no_audit() {
    let points = [
        ("replica-0:step-0".to_owned(), "return(lose)".to_owned()),
        // Replica 1 loads its part of program 2, then its part of program 1, all of that, and all of program
        // 2.
        ("replica-1:load".to_owned(), "3*off->1*return(out-of-memory)->off".to_owned()),
    ];
    let options = auditing(with_points(&points), Audits::Every(1)).with(|o| o.shards = 3);
    let mut two = replicas(2, options);
    let feed = unisono_replica::Feed { inputs: batch(0, BATCH).inputs[..1].to_vec(), ..batch(0, BATCH) };
    two.prepare(2, &[BATCH]).unwrap();
    two.step(1, &feed, &mut commit).unwrap();
    assert_eq!(two.len(), 1);
    two.prepare(2, &[BATCH]).unwrap();
    assert!(two.step(2, &feed, &mut commit).unwrap().audit.is_some());
    assert_eq!(two.len(), 1);
}

/// A replica has memory for a quarter of the shards, and so cannot run those of the other one. Its own are
/// run by the other one all the same.
#[test]
fn a_replica_that_is_wrong_is_found_where_memory_keeps_it_from_the_others_shards() {
    let points = [
        ("replica-0:load".to_owned(), "1*off->1*return(out-of-memory)->off".to_owned()),
        ("replica-0".to_owned(), "return(gradient)".to_owned()),
    ];
    let mut two = replicas(2, auditing(with_points(&points), Audits::Every(1)));
    // The first plan is that of a few shards.
    two.prepare(0, &[BATCH / 2]).unwrap();
    two.prepare(0, &[BATCH]).unwrap();
    let error = step(&mut two, 0, BATCH).unwrap_err();
    assert!(matches!(&error, ReplicaError::Audit { wrong, .. } if *wrong == [0]), "{error}");
}

#[test]
fn audits_pass_where_memory_keeps_replicas_from_the_others_shards() {
    let whole = undisturbed();
    let points = [("replica-0:load".to_owned(), "1*off->1*return(out-of-memory)->off".to_owned())];
    let mut two = replicas(2, auditing(with_points(&points), Audits::Every(1)));
    two.prepare(0, &[BATCH / 2]).unwrap();
    two.prepare(0, &[BATCH]).unwrap();
    let ended = run_trusting(&mut two).unwrap();
    assert!(ended.bytes == whole && ended.errors.is_empty(), "{:?}", ended.errors);
    assert_eq!((two.len(), two.audits(0).passed), (2, 12));
}

#[test]
fn an_auditor_that_is_lost_is_told() {
    // The first time in the step itself, and then in the same step made again.
    for fault in ["return(lose)", "1*off->return(lose)"] {
        for program in [0, 1, 2] {
            let points = [("replica-1:step-0".to_owned(), fault.to_owned())];
            let mut two = replicas(2, auditing(with_points(&points), Audits::Every(1)));
            let mut feed = batch(0, BATCH);
            if program > 0 {
                feed.inputs.truncate(1);
            }
            let outcome = two.step(program, &feed, &mut commit).unwrap();
            let left: Vec<usize> = outcome.left.iter().map(|left| left.replica).collect();
            assert_eq!(left, [1], "program {program}, {fault}");
            assert_eq!(two.step(program, &feed, &mut commit).unwrap().left, []);
        }
    }
}

/// Makes a step and then an audited one, in which a launch of each plan is left out: in all that the replica
/// computes from then on, or when it makes the step first. Returns none where nothing was wrong.
fn finds_skip(launch: usize, once: bool) -> Option<bool> {
    let action = match once {
        true => format!("1*return(skip:{launch})->return(skip:0)"),
        false => format!("return(skip:{launch})"),
    };
    let two_steps = |options: Options| {
        let mut alone = replicas(1, options);
        step(&mut alone, 0, BATCH).unwrap();
        let outcome = step(&mut alone, 1, BATCH);
        outcome.map(|outcome| (outcome.outputs, all_states(&mut alone)))
    };
    match two_steps(auditing(with(&[(0, 1, 0, &action)]), Audits::Every(1))) {
        Err(error) => {
            assert!(matches!(error, ReplicaError::Audit { .. }), "{error}");
            Some(true)
        }
        Ok(bytes) if bytes == two_steps(options()).unwrap() => None,
        Ok(_) => Some(false),
    }
}

/// Each launch of a step in turn, on the only replica, so that no other can tell.
#[test]
fn a_launch_that_is_left_out_is_found() {
    let once: Vec<Option<bool>> = (1..40).map(|launch| finds_skip(launch, true)).collect();
    let launches = once.iter().rposition(Option::is_some).unwrap() + 1;
    assert!((20..39).contains(&launches), "{launches}");
    assert!(!once.contains(&Some(false)), "{once:?}");
    // One that is left out for good gives the same bytes twice where it adds to zeros or updates the state in
    // place. Where a launch only writes, nothing of an earlier step is taken for its result, since scratch
    // was filled with NaN.
    let found = (1..=launches).filter(|&launch| finds_skip(launch, false) == Some(true)).count();
    assert!(found >= 9, "{found} of {launches}");
}
