//! Shards are assigned by measured pace.

use std::sync::Arc;

use crate::common::{adapter, bytes, with_points};
use unisono_graph::{Program, StateKind, Tape, Type};
use unisono_replica::{Assignment, Feed, Options, Replicas, Verdict};

const ROWS: usize = 256;
/// The width of a model with enough work for each sample that a slow replica is noticed.
const WIDE: usize = 384;
/// The width of a model with little work, for runs in which a fault sets the time of a sample.
const NARROW: usize = 16;
/// The number of steps: some to measure the paces, and six to see their effect.
const STEPS: usize = 20;

/// Returns the model. With `centred` it uses the batch's mean, so that it has a cut before the end.
fn program(wide: usize, centred: bool) -> Arc<Program> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[wide]));
    let w = tape.state("w", &[wide, wide], StateKind::Parameter);
    let v = tape.state("v", &[wide, wide], StateKind::Parameter);
    let y = x.matmul_t(&w).tanh();
    let y = if centred { &y - &(&y.sum_shards() * (1.0 / ROWS as f32)) } else { y };
    let y = y.matmul_t(&v).tanh();
    let loss = (&y * &y).sum(&[-1]).sum_shards();
    for (state, gradient) in [&w, &v].into_iter().zip(tape.gradients(&loss, &[w.clone(), v.clone()])) {
        tape.update(state, &(state - &(&gradient * 1e-4)));
    }
    tape.output("loss", &loss);
    Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
}

/// Returns the shards of each of two replicas in the last six steps, and the state after them.
fn run(wide: usize, options: Options) -> ([u64; 2], Vec<u8>) {
    run_program(wide, false, options)
}

fn run_program(wide: usize, centred: bool, options: Options) -> ([u64; 2], Vec<u8>) {
    let options = options.with(|o| {
        o.global_batch = ROWS;
        o.shards = 32;
    });
    let programs = vec![program(wide, centred)];
    let mut replicas = Replicas::start(&[adapter(), adapter()], programs, options).unwrap();
    for index in 0..2 {
        let values = (0..wide * wide).map(|i| ((i * 7 + index) % 23) as f32 * 4e-3 - 0.04);
        replicas.write_state(index, &bytes(values)).unwrap();
    }
    let x = bytes((0..ROWS * wide).map(|i| ((i * 37) % 97) as f32 / 31.0 - 1.5));
    let feed = Feed { rows: ROWS, inputs: vec![x.into()], ..Feed::default() };
    let mut before = [0; 2];
    for step in 0..STEPS {
        if step == STEPS - 6 {
            before = [0, 1].map(|replica| replicas.reports()[replica].shards);
        }
        replicas.step(0, &feed, &mut |_| Verdict::Commit).unwrap();
    }
    let shards = [0, 1].map(|replica: usize| replicas.reports()[replica].shards - before[replica]);
    assert_eq!(replicas.left(), []);
    (shards, replicas.read_state(0).unwrap())
}

/// Of two equal replicas, one that is slowed to a third should get a quarter of the shards: clearly fewer
/// than half of them, and on a busy machine perhaps none, since a step takes a few milliseconds. The results
/// stay the same. The next test says how many it gets where nothing else decides the times.
#[test]
fn a_replica_slowed_to_a_third_gets_fewer_shards() {
    let slow = || with_points(&[("replica-1".to_owned(), "return(slow:3)".to_owned())]);
    let (even, state) = run(WIDE, slow().with(|o| o.assignment = Assignment::Even));
    assert_eq!(even, [96, 96]);
    let (speed, same) = run(WIDE, slow());
    assert!(state == same, "who is slow shows in the state");
    assert!(speed[1] <= 72, "{speed:?} of 192 shards");
}

/// The times of samples are set by faults, so this holds on a busy machine too. The shards divide three to
/// one, give or take a shard or two.
#[test]
fn a_replica_with_a_third_of_the_speed_gets_a_quarter_of_the_shards() {
    let takes = |replica, micros| (format!("replica-{replica}"), format!("return(sample:{micros})"));
    for (paces, quarter) in [([1000, 3000], 1), ([3000, 1000], 0)] {
        let (shards, _) = run(NARROW, with_points(&[takes(0, paces[0]), takes(1, paces[1])]));
        assert_eq!(shards[0] + shards[1], 6 * 32);
        assert!((6 * 6..=6 * 10).contains(&shards[quarter]), "{shards:?} at {paces:?}");
    }
}

/// The fast one has memory for half of the shards and is ordered to load three quarters: it stays, and the
/// results are the same.
#[test]
fn a_quick_replica_without_memory_for_more_shards_stays() {
    let takes = |replica, micros| (format!("replica-{replica}"), format!("return(sample:{micros})"));
    let paces = [takes(0, 1000), takes(1, 3000)];
    let short = ("replica-0:load".to_owned(), "1*off->1*return(out-of-memory)->off".to_owned());
    for (centred, expected) in [(false, 6 * 22..=6 * 26), (true, 6 * 16..=6 * 16)] {
        let (free, state) = run_program(NARROW, centred, with_points(&paces));
        assert!((6 * 22..=6 * 26).contains(&free[0]), "{free:?}");
        let points = [&paces[..], std::slice::from_ref(&short)].concat();
        let (shards, same) = run_program(NARROW, centred, with_points(&points));
        assert!(expected.contains(&shards[0]), "{shards:?}, samples meet before the end: {centred}");
        assert!(state == same, "who has no memory shows in the state");
    }
}
