//! Programs that come and go while replicas run.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Program, StateKind, Tape, Type};
use unisono_replica::{Feed, ReplicaError, Replicas};

/// Returns a program whose kernels are no other's: the number is in them.
fn of(number: usize) -> Arc<Program> {
    let tape = Tape::new();
    let w = tape.state("w", &[4, IN], StateKind::Parameter);
    let x = tape.input("x", Type::sample(&[IN]));
    tape.output("y", &((x.matmul_t(&w) * (1.0 + number as f32 / 8.0)).tanh() + 0.5));
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// Returns what a program makes of a batch of so many samples.
fn made(replicas: &mut Replicas, program: usize, samples: usize) -> Vec<f32> {
    let feed = Feed { rows: samples, inputs: vec![rows(samples, IN, samples)], ..Feed::default() };
    replicas.step(program, &feed, &mut commit).unwrap().outputs.floats(0).unwrap().to_vec()
}

#[test]
fn nothing_is_left_of_a_program_that_is_forgotten() {
    const NUMBERS: usize = 12;
    for count in [1, 2] {
        let mut all = replicas(count, options());
        let mut some = replicas(count, options());
        step(&mut some, 0, BATCH).unwrap();
        step(&mut all, 0, BATCH).unwrap();
        let mut kernels = Vec::new();
        let mut known = Vec::new();
        for round in 0..2 {
            for number in 0..NUMBERS {
                if round == 0 {
                    known.push(all.add_programs(vec![of(number)]).unwrap());
                }
                let fresh = some.add_programs(vec![of(number)]).unwrap();
                for samples in [BATCH, 3] {
                    let expected = made(&mut all, known[number], samples);
                    assert_eq!(made(&mut some, fresh, samples), expected, "{number}");
                }
                let of_replica = |replica: &unisono_replica::ReplicaReport| replica.kernels;
                kernels.push(some.reports().iter().map(of_replica).max().unwrap());
                some.forget_programs(fresh..fresh + 1).unwrap();
                assert!(matches!(some.prepare(fresh, &[BATCH]), Err(ReplicaError::NoProgram { .. })));
            }
        }
        // There are as many kernels at the end as after the first program. Who forgets none keeps them all.
        assert!(kernels.iter().all(|held| *held == kernels[0]), "{kernels:?}");
        let own = all.reports()[0].kernels;
        assert!(own >= kernels[0] + NUMBERS as u64 - 1, "{own}, {kernels:?}");
        // The programs that were there at first are as they were.
        let ends = [&mut all, &mut some].map(|replicas| {
            step(replicas, 1, BATCH).unwrap();
            all_states(replicas)
        });
        assert!(ends[0] == ends[1]);
    }
}

#[test]
fn what_is_not_there_or_holds_the_state_is_not_forgotten() {
    let mut replicas = replicas(1, options());
    for programs in [0..1, 2..4, 3..4, 7..8] {
        let error = replicas.forget_programs(programs.clone()).unwrap_err();
        assert!(matches!(error, ReplicaError::NoProgram { .. }), "{programs:?}: {error}");
    }
    step(&mut replicas, 0, BATCH).unwrap();
    replicas.forget_programs(1..3).unwrap();
    assert_eq!(replicas.add_programs(vec![of(0)]).unwrap(), 3);
    assert_eq!(made(&mut replicas, 3, 5).len(), 20);
}

/// A replica keeps sixteen plans. Each that it has dropped is loaded again before the step that needs it, and
/// compiles nothing.
#[test]
fn plans_that_were_dropped_are_loaded_again() {
    let mut replicas = replicas(1, options());
    let first = replicas.add_programs((0..20).map(of).collect()).unwrap();
    let mut made_of = |round: u64| {
        let outputs: Vec<_> = (0..20).map(|number| made(&mut replicas, first + number, BATCH)).collect();
        let report = &replicas.reports()[0];
        assert_eq!(report.loads, 20 * round);
        (outputs, report.kernels)
    };
    assert!(made_of(1) == made_of(2));
}

/// A plan that was dropped counts as not loaded: a replica that has no memory for it any more stays, and runs
/// as many shards at once as it could before.
#[test]
fn a_plan_that_was_dropped_does_not_count_as_loaded() {
    let point = ("replica-0:load".to_owned(), "18*off->1*return(out-of-memory)->off".to_owned());
    let mut replicas = replicas(1, with_points(&[point]));
    made(&mut replicas, 1, 3);
    let expected = made(&mut replicas, 1, BATCH);
    let first = replicas.add_programs((0..16).map(of).collect()).unwrap();
    (0..16).for_each(|number| drop(made(&mut replicas, first + number, BATCH)));
    assert_eq!(replicas.reports()[0].loads, 18);
    assert_eq!(made(&mut replicas, 1, BATCH), expected);
    assert!(replicas.left().is_empty() && replicas.reports()[0].loads > 20);
}
