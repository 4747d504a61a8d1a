//! Wrong arguments are errors that name the argument.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Program, StateKind, Tape, Type};
use unisono_replica::{Feed, Options, ReplicaError, Replicas};

#[test]
fn arguments_are_checked_before_a_device_opens() {
    let start = |programs, options| Replicas::start(&[adapter()], programs, options).unwrap_err().to_string();
    assert_eq!(Replicas::start(&[], vec![train()], options()).unwrap_err(), ReplicaError::NoReplicas);
    assert_eq!(start(vec![], options()), "no programs: at least one is needed");
    assert_eq!(
        start(vec![train()], options().with(|o| o.shards = 0)),
        "0 shards: the number must be from 1 to 65536"
    );
    assert_eq!(
        start(vec![train()], options().with(|o| o.global_batch = 0)),
        "a global batch of 0 samples: it needs at least 1"
    );
    let tape = Tape::new();
    tape.state("w", &[4, IN], StateKind::Parameter);
    let v = tape.state("v", &[OUT, 5], StateKind::Parameter);
    tape.output("v", &(tape.input("x", Type::global(&[])) * v));
    let other = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    assert_eq!(
        start(vec![train(), other], options()),
        "program 1: its state 1 is v [3, 5], in program 0 that is v [3, 4]"
    );
    assert_eq!(
        start(vec![predict(), train()], options().with(|o| o.shards = 70_000)),
        "70000 shards: the number must be from 1 to 65536"
    );
}

#[test]
fn so_are_feeds_and_states() {
    let mut replicas = replicas(2, options());
    let mut refused = |feed: &Feed| {
        let error = replicas.step(0, feed, &mut |_| unreachable!()).unwrap_err();
        error.to_string()
    };
    let good = batch(0, BATCH);
    assert_eq!(
        refused(&Feed { rows: 0, ..good.clone() }),
        "a batch of 0 samples: the number must be from 1 to 13"
    );
    assert_eq!(
        refused(&Feed { rows: 14, ..good.clone() }),
        "a batch of 14 samples: the number must be from 1 to 13"
    );
    assert_eq!(refused(&Feed { inputs: vec![], ..good.clone() }), "0 inputs given, 5 wanted");
    assert_eq!(refused(&Feed { rows: 12, ..good }), "input x [B, 5]: 260 bytes given, 240 wanted");
    assert_eq!(
        replicas.write_state(1, &[0; 4]).unwrap_err().to_string(),
        "state v [3, 4]: 4 bytes given, 48 wanted"
    );
    assert_eq!(replicas.write_state(3, &[0; 4]).unwrap_err().to_string(), "no state 3: there are 3");
    assert_eq!(replicas.read_state(9).unwrap_err().to_string(), "no state 9: there are 3");
    assert_eq!(replicas.prepare(3, &[1]).unwrap_err().to_string(), "no program 3: there are 3");
    assert_eq!(
        replicas.prepare(0, &[99]).unwrap_err().to_string(),
        "a batch of 99 samples: the number must be from 1 to 13"
    );
    assert!(step(&mut replicas, 0, BATCH).unwrap().committed);
}

#[test]
fn a_model_that_does_not_fit_is_an_error_and_nobody_leaves() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[1 << 20]));
    tape.output("y", &x.tanh().sum(&[-1]).sum_shards());
    let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    let options = Options::default().with(|o| {
        o.global_batch = 1 << 20;
        o.shards = 1;
    });
    let mut replicas = Replicas::start(&[adapter()], vec![program], options).unwrap();
    let error = replicas.prepare(0, &[1 << 20]).unwrap_err();
    assert!(matches!(error, ReplicaError::Load { program: 0, replica: 0, .. }), "{error}");
    assert_eq!(replicas.len(), 1);
}
