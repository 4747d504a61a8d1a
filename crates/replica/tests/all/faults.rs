//! A replica may be lost at any moment; the results stay the same.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use unisono_graph::{Program, StateKind, Tape, Type};
use unisono_replica::{Assignment, Feed, Options, ReplicaError, Replicas};

#[test]
fn a_replica_lost_at_any_segment_of_any_step_leaves_the_same_bytes() {
    let segments = train().segments();
    assert!(segments >= 3);
    let whole = run(&mut replicas(1, options()));
    for at in 0..SAMPLES.len() as u64 {
        let segment = at as usize % segments;
        let (kind, why) = match at % 4 {
            0 => ("return(panic)", "its thread panicked: on purpose"),
            1 => ("return(lose)", "device lost: on purpose"),
            2 => ("return(out-of-memory)", "out of memory"),
            _ => ("return(transfer)", "the transfer failed on purpose"),
        };
        let lost = 1 + at as usize % 2;
        let mut three = replicas(3, with(&[(lost, at, segment, kind)]));
        assert!(run(&mut three) == whole, "step {at}, segment {segment}");
        let [left] = three.left() else { panic!("{:?}", three.left()) };
        assert_eq!((left.replica, left.step), (lost, at));
        assert!(left.why.contains(why), "{left}");
        assert!(left.to_string().contains(&adapter().label()), "{left}");
        assert_eq!(three.len(), 2);
        assert_eq!(three.reports()[lost].left.as_ref(), Some(left));
    }
}

/// What the host reads then are results of an earlier step.
#[test]
fn a_replica_whose_driver_drops_commands_and_says_nothing_is_not_believed() {
    let segments = train().segments();
    let whole = run(&mut replicas(1, options()));
    for at in 1..SAMPLES.len() as u64 {
        // The first run copies uploads, or only a mark. The second is a pass.
        let kind = if at % 2 == 0 { "return(drop:1)" } else { "return(drop:2)" };
        let (lost, segment) = (at as usize % 2, at as usize % segments);
        let dropping = with(&[(lost, at, segment, kind)]).with(|options| options.marks = Some(true));
        let mut two = replicas(2, dropping);
        assert!(run(&mut two) == whole, "step {at}, segment {segment}");
        let [left] = two.left() else { panic!("{:?}", two.left()) };
        assert_eq!((left.replica, left.step), (lost, at));
        assert!(left.why.contains("device lost: the driver reported commands as done"), "{left}");
    }
}

/// Nothing of what it reports as done is: it runs no command, or the host reads zeros or what it read before.
#[test]
fn a_replica_whose_driver_lies_is_not_believed() {
    let segments = train().segments();
    let whole = run(&mut replicas(1, options()));
    for at in 0..SAMPLES.len() as u64 {
        let lie = ["return(nothing)", "return(zeros)", "return(stale)"][at as usize % 3];
        let (lost, segment) = (at as usize % 2, (at / 3) as usize % segments);
        let lying = with(&[(lost, at, segment, lie)]).with(|options| options.marks = Some(true));
        let mut two = replicas(2, lying);
        assert!(run(&mut two) == whole, "{lie} in step {at}, segment {segment}");
        let [left] = two.left() else { panic!("{:?}", two.left()) };
        assert_eq!((left.replica, left.step), (lost, at));
        assert!(left.why.contains("device lost: the driver reported commands as done"), "{left}");
    }
}

#[test]
fn the_outcome_tells_who_left() {
    let mut two = replicas(2, with(&[(0, 1, 0, "return(lose)")]));
    assert_eq!(step(&mut two, 0, BATCH).unwrap().left, []);
    let left = step(&mut two, 1, BATCH).unwrap().left;
    assert_eq!(left.iter().map(|l| (l.replica, l.step)).collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!(step(&mut two, 2, BATCH).unwrap().left, []);
}

#[test]
fn the_last_one_carries_on_and_its_loss_is_the_end() {
    let whole = run(&mut replicas(1, options()));
    let two = [(0, 2, 1, "return(panic)"), (2, 2, 0, "return(lose)")];
    assert!(run(&mut replicas(3, with(&two))) == whole);
    let last = [(0, 1, 0, "return(panic)"), (1, 2, 2, "return(lose)")];
    let mut none = replicas(2, with(&last));
    step(&mut none, 0, BATCH).unwrap();
    step(&mut none, 1, BATCH).unwrap();
    let error = step(&mut none, 2, BATCH).unwrap_err();
    let ReplicaError::NoneLeft { step: 2, left } = &error else { panic!("{error}") };
    assert_eq!(left.iter().map(|l| l.replica).collect::<Vec<_>>(), [0, 1]);
    assert!(error.to_string().contains("no replica is left"), "{error}");
    assert!(matches!(step(&mut none, 3, BATCH), Err(ReplicaError::NoneLeft { .. })));
    assert!(matches!(none.read_state(0), Err(ReplicaError::NoneLeft { .. })));
    assert!(none.is_empty());
}

#[test]
fn one_that_does_not_answer_is_not_waited_for() {
    let whole = run(&mut replicas(1, options()));
    let stall = with(&[(1, 3, 1, "sleep(20000)")]);
    let mut two = replicas(2, stall.with(|o| o.deadline = Duration::from_secs(4)));
    two.prepare(0, &SAMPLES).unwrap();
    let start = std::time::Instant::now();
    assert!(run(&mut two) == whole);
    assert!(two.left()[0].why.contains("no answer after 4"), "{}", two.left()[0]);
    drop(two);
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn what_is_not_finite_is_named_and_changes_nothing() {
    for count in [1, 2, 5] {
        let mut replicas = replicas(count, options());
        step(&mut replicas, 0, BATCH).unwrap();
        let before = all_states(&mut replicas);
        for (input, wanted) in [("x", "sum"), ("y", "the output loss")] {
            let mut feed = batch(1, BATCH);
            let index = train().inputs().iter().position(|i| i.name == input).unwrap();
            let mut bytes = feed.inputs[index].to_vec();
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
            feed.inputs[index] = bytes.into();
            let error = replicas.step(0, &feed, &mut |_| unreachable!()).unwrap_err();
            let ReplicaError::NotFinite { what, .. } = &error else { panic!("{error}") };
            assert!(what.contains(wanted), "{count} replicas: {error}");
        }
        assert!(all_states(&mut replicas) == before);
        assert_eq!(replicas.len(), count);
        assert!(step(&mut replicas, 1, BATCH).unwrap().committed);
    }
}

#[test]
fn a_gradient_goes_by_its_parameter() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    let w = tape.state("layer.weight", &[3, 4], StateKind::Parameter);
    let loss = x.matmul_t(&w).tanh().sum(&[-1]).sum_shards();
    let gradient = &tape.gradients(&loss, std::slice::from_ref(&w))[0];
    tape.update(&w, &(&w - &(gradient * 0.1)));
    let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    for count in [1, 2] {
        let mut replicas =
            Replicas::start(&vec![adapter(); count], vec![Arc::clone(&program)], options()).unwrap();
        let inputs = vec![bytes((0..24).map(|i| if i == 17 { f32::INFINITY } else { 0.5 })).into()];
        let feed = Feed { rows: 6, inputs, ..Feed::default() };
        let error = replicas.step(0, &feed, &mut |_| unreachable!()).unwrap_err();
        assert_eq!(error.to_string(), "step 0: the gradient of layer.weight is not finite");
        assert_eq!(replicas.read_state(0).unwrap(), vec![0; 48]);
    }
}

#[test]
fn a_flipped_bit_is_found() {
    let mut three = replicas(3, with(&[(1, 0, 0, "return(state:0)")]));
    three.check_digests().unwrap();
    step(&mut three, 0, BATCH).unwrap();
    let digests = three.digests().unwrap();
    let error = three.check_digests().unwrap_err();
    let ReplicaError::Digests { groups, wrong, .. } = &error else { panic!("{error}") };
    assert_eq!(*wrong, [1]);
    assert_eq!(groups.len(), 2);
    assert!(groups[0].starts_with("replica 0 (") && groups[1].starts_with("replica 1 ("), "{error}");
    assert!(digests[0].1 == digests[2].1 && digests[0].1 != digests[1].1);
}

#[test]
fn no_memory_before_the_first_step_is_an_error_with_the_bytes_and_nobody_leaves() {
    let point = ("replica-1:load".to_owned(), "1*return(out-of-memory)->off".to_owned());
    let mut two = replicas(2, with_points(&[point]));
    let error = two.prepare(0, &[BATCH]).unwrap_err();
    let ReplicaError::OutOfMemory { replica: 1, bytes, what, adapter: of } = &error else {
        panic!("{error}")
    };
    assert_eq!((*bytes, what.as_str(), of.clone()), (1 << 40, "on purpose", adapter().label()));
    assert!(
        error.to_string().ends_with("on purpose: out of memory (1099511627776 bytes requested)"),
        "{error}"
    );
    assert_eq!((two.len(), two.left()), (2, &[][..]));
    assert!(run(&mut two) == run(&mut replicas(1, options())));
}

/// The state of a device: a software driver promises more memory than there is, so the real size is known
/// beforehand.
#[test]
fn no_memory_for_the_state_is_an_error_with_the_bytes() {
    let tape = Tape::new();
    let wide = 1 << 18;
    let states = (0..64).map(|i| tape.state(&format!("w{i}"), &[wide, 1 << 10], StateKind::Parameter));
    let x = tape.input("x", Type::sample(&[]));
    let total = states.fold(x.sum_shards(), |sum, state| sum + state.sum(&[0, 1]));
    tape.output("total", &total);
    let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    let needed = (64 * 4 * wide as u64) << 10;
    let there = adapter().memory_bytes();
    if there.is_none_or(|there| there >= needed) {
        let what = "more memory than there is: this adapter does not say how much it has";
        let line = format!("left out: {what}\n");
        // The harness catches what `eprintln!` writes. `cargo xtask test` reads the file.
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        return;
    }
    let error = Replicas::start(&[adapter()], vec![program], options()).unwrap_err();
    let ReplicaError::OutOfMemory { replica: 0, bytes, .. } = &error else { panic!("{error}") };
    assert_eq!(*bytes, needed);
    assert!(error.to_string().contains(&adapter().label()), "{error}");
}

/// In a step a replica without memory leaves: at the load of a plan, and at the start of a segment.
#[test]
fn no_memory_in_a_step_loses_the_replica_alone() {
    let whole = run(&mut replicas(1, options()));
    let at_load = with_points(&[("replica-1:load".to_owned(), "1*off->return(out-of-memory)".to_owned())]);
    let mut in_load = replicas(3, at_load);
    in_load.prepare(0, &[BATCH]).unwrap();
    let mut in_segment = replicas(3, with(&[(1, 1, 1, "return(out-of-memory)")]));
    for three in [&mut in_load, &mut in_segment] {
        assert!(run(three) == whole);
        let [left] = three.left() else { panic!("{:?}", three.left()) };
        assert_eq!((left.replica, left.step), (1, 1));
        assert_eq!(left.out_of_memory, Some(("on purpose".to_owned(), 1 << 40)));
    }
}

/// A replica is lost while it runs shards, and another one has no memory for them beside its own.
#[test]
fn no_memory_for_shards_of_a_lost_replica_means_fewer_at_once() {
    let points = [
        ("replica-1:step-1:segment-0", "return(lose)"),
        ("replica-0:load", "1*off->1*return(out-of-memory)->off"),
    ];
    let points: Vec<_> = points.iter().map(|&(name, action)| (name.to_owned(), action.to_owned())).collect();
    let three_shards = |o: &mut Options| (o.shards, o.assignment) = (3, Assignment::Even);
    let mut two = replicas(2, with_points(&points).with(three_shards));
    let mut one = replicas(1, options().with(three_shards));
    for at in 0..3 {
        let feed = Feed { inputs: batch(at, BATCH).inputs[..1].to_vec(), ..batch(at, BATCH) };
        let outcome = two.step(2, &feed, &mut commit).unwrap();
        assert_eq!(outcome.outputs, one.step(2, &feed, &mut commit).unwrap().outputs, "step {at}");
        assert_eq!(two.left().iter().map(|left| left.replica).collect::<Vec<_>>(), vec![1; at.min(1)]);
    }
}

/// A replica joins whose device refuses the program that the others run.
#[test]
fn a_replica_that_joins_and_refuses_the_program_leaves_again() {
    let whole = run(&mut replicas(1, options()));
    for has_run in [false, true] {
        let point = ("replica-1:load".to_owned(), "return(transfer)".to_owned());
        let mut one = replicas(1, with_points(&[point]));
        if has_run {
            let feed = Feed { inputs: batch(0, BATCH).inputs[..1].to_vec(), ..batch(0, BATCH) };
            one.step(2, &feed, &mut commit).unwrap();
        }
        assert_eq!(one.join(&adapter()), Ok(1));
        assert!(run(&mut one) == whole);
        let [left] = one.left() else { panic!("{:?}", one.left()) };
        assert!(left.replica == 1 && left.why.contains("the transfer failed on purpose"), "{left}");
    }
}
