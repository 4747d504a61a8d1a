//! Resident memory, which one program fills and others read.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Program, Tape, Type};
use unisono_replica::{Feed, ReplicaError, Replicas};

/// Returns a program that fills resident memory with its rows, or adds its rows to it. Its output are the
/// rows that it leaves.
fn program(reads: bool) -> Arc<Program> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[IN]));
    let rows = if reads { tape.resident(0, Type::sample(&[IN])) + &x } else { &x * 1.0 };
    tape.output("rows", &rows);
    tape.keep_resident(0, &rows);
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// The numbers of the program that fills the memory, and of the one that reads it.
const FILL: usize = 0;
const READ: usize = 1;

fn made(replicas: &mut Replicas, program: usize) -> Result<Vec<f32>, ReplicaError> {
    let mut inputs = vec![rows(BATCH, IN, 0)];
    // Resident memory is an input without bytes.
    inputs.resize(program + 1, Arc::default());
    let feed = Feed { rows: BATCH, inputs, ..Feed::default() };
    Ok(replicas.step(program, &feed, &mut commit)?.outputs.floats(0).unwrap().to_vec())
}

/// Loading a plan for fewer rows replaces the memory by zeros.
#[test]
fn memory_that_preparing_has_replaced_counts_as_lost() {
    for count in [1, 2] {
        let programs = vec![program(false), program(true)];
        let mut replicas = Replicas::start(&vec![adapter(); count], programs, options()).unwrap();
        let filled = made(&mut replicas, FILL).unwrap();
        let twice: Vec<f32> = filled.iter().map(|x| x + x).collect();
        assert_eq!(made(&mut replicas, READ), Ok(twice.clone()));
        replicas.prepare(READ, &[4]).unwrap();
        assert_eq!(made(&mut replicas, READ), Err(ReplicaError::ResidentsLost));
        assert_eq!(made(&mut replicas, FILL), Ok(filled));
        assert_eq!(made(&mut replicas, READ), Ok(twice));
    }
}
