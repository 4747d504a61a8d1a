//! A worker without a thread.

use unisono_graph::{Tape, Type};

use super::*;

/// Returns a program that fills resident memory.
fn program() -> Arc<Program> {
    let tape = Tape::new();
    tape.keep_resident(0, &(tape.input("x", Type::sample(&[2])) * 2.0));
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// The scheduler counts a plan as loaded until the worker says that it has dropped it.
#[test]
fn a_plan_without_resident_memory_stays_loaded() {
    let adapter = unisono_gpu::select(&["cpu"]).unwrap().remove(0);
    let how = unisono_gpu::Options::default();
    let (answers, _) = crossbeam::channel::unbounded();
    let programs = Programs::new(&[program()]);
    let holding = Holding::default();
    let mut worker = Worker::open(0, how, &adapter, programs, Options::default(), holding, answers).unwrap();
    let run = Arc::new(Run::whole(&[2, 2]));
    worker.load(0, Arc::clone(&run)).unwrap();
    worker.answer(0, Request::DropResidents).unwrap();
    worker.device.lose();
    assert!(worker.load(0, run).is_err());
    assert_eq!((worker.loaded.len(), worker.unloaded.len()), (1, 0));
}
