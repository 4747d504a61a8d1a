//! What the tests share: a small model in which any dependence on the assignment would show, and its data.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use unisono_gpu::{Adapter, select};
use unisono_graph::{DType, Program, RandomKey, StateKind, Tape, Type};
use unisono_replica::{Feed, Options, Outcome, Outputs, ReplicaError, Replicas, Verdict};

pub const BATCH: usize = 13;
pub const SHARDS: usize = 8;
pub const IN: usize = 5;
pub const OUT: usize = 3;

/// Returns a training program: two layers with dropout, normalised by the batch's own mean (a second cut),
/// SGD with momentum, and a loss averaged by weights.
pub fn train() -> Arc<Program> {
    let tape = Tape::new();
    let (w, v, m) = states(&tape);
    let x = tape.input("x", Type::sample(&[IN]));
    let y = tape.input("y", Type::sample(&[OUT]));
    let rate = tape.input("rate", Type::global(&[]));
    let ones = tape.input("ones", Type::sample(&[]));
    let total = ones.sum_shards();
    let h = x.matmul_t(&w).tanh().dropout(0.3, "drop");
    let mean = h.sum_shards() / &total;
    let error = (&h - &mean).matmul_t(&v) - &y;
    let losses = (&error * &error).sum(&[-1]);
    let loss = losses.sum_shards();
    let gradients = tape.gradients(&loss, &[w.clone(), v.clone()]);
    let momentum = &m * 0.9 + &gradients[0] / &total;
    tape.update(&m, &momentum);
    tape.update(&w, &(&w - &(momentum * &rate)));
    tape.update(&v, &(&v - &(&gradients[1] / &total * &rate)));
    tape.output("losses", &losses);
    tape.output("loss", &loss);
    tape.output("mean", &(&loss / &total));
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// Returns the predictions of the same model: there is nothing to commit, and no cut.
pub fn predict() -> Arc<Program> {
    let tape = Tape::new();
    let (w, v, _) = states(&tape);
    let x = tape.input("x", Type::sample(&[IN]));
    tape.output("y", &x.matmul_t(&w).tanh().matmul_t(&v));
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// Returns a program with a sum over the samples: one cut, and nothing to commit.
pub fn evaluate() -> Arc<Program> {
    let tape = Tape::new();
    let (w, v, _) = states(&tape);
    let x = tape.input("x", Type::sample(&[IN]));
    let loss = x.matmul_t(&w).tanh().matmul_t(&v).sum(&[-1]).sum_shards();
    tape.output("loss", &loss);
    tape.output("half", &(&loss * 0.5));
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

fn states(tape: &Tape) -> (unisono_graph::Var, unisono_graph::Var, unisono_graph::Var) {
    let w = tape.state("w", &[4, IN], StateKind::Parameter);
    let v = tape.state("v", &[OUT, 4], StateKind::Parameter);
    let m = tape.state("m", &[4, IN], StateKind::Optimizer);
    (w, v, m)
}

pub fn adapter() -> Adapter {
    select::<&str>(&[]).unwrap().remove(0)
}

pub fn options() -> Options {
    Options::default().with(|o| {
        o.global_batch = BATCH;
        o.shards = SHARDS;
    })
}

/// Returns the options of a run with faults: actions of the `fail` crate by replica, step and segment.
pub fn with(faults: &[(usize, u64, usize, &str)]) -> Options {
    let named = |&(replica, step, segment, action): &(usize, u64, usize, &str)| {
        (format!("replica-{replica}:step-{step}:segment-{segment}"), action.to_owned())
    };
    with_points(&faults.iter().map(named).collect::<Vec<_>>())
}

/// Returns the options of a run with faults by the points' names. Points are global: each run has a scope of
/// its own, since tests run side by side.
pub fn with_points(points: &[(String, String)]) -> Options {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let fault_scope = format!("run-{}:", RUNS.fetch_add(1, Ordering::Relaxed));
    for (name, action) in points {
        fail::cfg(format!("{fault_scope}{name}"), action).unwrap();
    }
    options().with(|o| o.fault_scope = fault_scope)
}

/// Returns replicas with the same initial state.
pub fn replicas(count: usize, options: Options) -> Replicas {
    let programs = vec![train(), predict(), evaluate()];
    let mut replicas = Replicas::start(&vec![adapter(); count], programs, options).unwrap();
    for (index, len) in [4 * IN, OUT * 4].into_iter().enumerate() {
        replicas
            .write_state(index, &bytes((0..len).map(|i| ((i * 7 + index) % 11) as f32 * 0.1 - 0.5)))
            .unwrap();
    }
    replicas
}

pub fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

/// Returns `columns` numbers for each of `rows` samples, which differ from step to step.
pub fn rows(rows: usize, columns: usize, step: usize) -> Arc<[u8]> {
    bytes((0..rows * columns).map(|i| ((i * 37 + step * 101 + columns) % 97) as f32 / 31.0 - 1.5)).into()
}

pub fn batch(step: usize, samples: usize) -> Feed {
    let program = train();
    let input = |decl: &unisono_graph::InputDecl| match decl.name.as_str() {
        "x" => rows(samples, IN, step),
        "y" => rows(samples, OUT, step),
        "ones" => bytes((0..samples).map(|_| 1.0)).into(),
        "rate" => bytes([0.05].into_iter()).into(),
        _ => {
            assert_eq!(decl.ty.dtype, DType::U32);
            Vec::new().into()
        }
    };
    let random = RandomKey { seed: 7, epoch: 1, position: 1000 * step as u64 };
    Feed { rows: samples, inputs: program.inputs().iter().map(input).collect(), random, held: None }
}

pub fn commit(_: &Outputs) -> Verdict {
    Verdict::Commit
}

pub fn step(replicas: &mut Replicas, step: usize, samples: usize) -> Result<Outcome, ReplicaError> {
    replicas.step(0, &batch(step, samples), &mut commit)
}

pub fn all_states(replicas: &mut Replicas) -> Vec<Vec<u8>> {
    (0..3).map(|i| replicas.read_state(i).unwrap()).collect()
}

/// The samples of each step: full batches, and ragged ones down to a single sample.
pub const SAMPLES: [usize; 6] = [BATCH, 7, 1, BATCH, 2, 12];

/// Runs the steps of [`SAMPLES`]. Returns the outputs of each step, and the state at the end, which is the
/// same on all replicas.
pub fn run(replicas: &mut Replicas) -> (Vec<Outputs>, Vec<Vec<u8>>) {
    let mut outputs = Vec::new();
    for (i, &samples) in SAMPLES.iter().enumerate() {
        let outcome = step(replicas, i, samples).unwrap();
        assert!(outcome.committed);
        outputs.push(outcome.outputs);
    }
    replicas.check_digests().unwrap();
    (outputs, all_states(replicas))
}
