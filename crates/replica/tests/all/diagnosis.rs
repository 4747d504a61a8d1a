//! Where sums stay on the device, one replica runs the step again to name the sum that is not finite. That
//! replica may be lost meanwhile, or have no memory for it.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Program, StateKind, Tape, Type};
use unisono_replica::{Feed, ReplicaError, Replicas};

const TRAIN: usize = 0;
const EVALUATE: usize = 1;

/// A program of one cut, whose shards may run a few at once, with an update or without.
fn programs() -> Vec<Arc<Program>> {
    let program = |trains: bool| {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[4]));
        let w = tape.state("layer.weight", &[3, 4], StateKind::Parameter);
        let loss = (x.matmul_t(&w) + x.sum(&[-1]).reshape(&[1])).sum(&[-1]).sum_shards();
        if trains {
            let gradient = &tape.gradients(&loss, std::slice::from_ref(&w))[0];
            tape.update(&w, &(&w - &(gradient * 0.1)));
        }
        tape.output("loss", &loss);
        Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
    };
    vec![program(true), program(false)]
}

fn start(count: usize, points: &[(&str, &str)]) -> Replicas {
    let points: Vec<_> = points.iter().map(|&(name, action)| (name.to_owned(), action.to_owned())).collect();
    Replicas::start(&vec![adapter(); count], programs(), with_points(&points)).unwrap()
}

/// Returns a batch whose last sample has one value that is not finite, or none.
fn feed(rows: usize, bad: bool) -> Feed {
    let last = rows * 4 - 1;
    let inputs = vec![bytes((0..=last).map(|i| if bad && i == last { f32::INFINITY } else { 0.5 })).into()];
    Feed { rows, inputs, ..Feed::default() }
}

fn error(replicas: &mut Replicas, program: usize, rows: usize) -> ReplicaError {
    replicas.step(program, &feed(rows, true), &mut |_| unreachable!()).unwrap_err()
}

/// One shard runs on three replicas, two of which idle: its sum stays on the device of the first.
#[test]
fn another_replica_looks_where_the_first_is_lost_or_cannot() {
    let expected = error(&mut start(1, &[]), EVALUATE, 1).to_string();
    assert_eq!(expected, "step 0: the output loss is not finite");
    for (kind, stays) in [("lose", false), ("panic", false), ("transfer", false), ("out-of-memory", true)] {
        let again = format!("1*off->return({kind})");
        let mut three = start(3, &[("replica-0:step-0:segment-0", &again)]);
        assert_eq!(error(&mut three, EVALUATE, 1).to_string(), expected, "{kind}");
        let left: Vec<usize> = three.left().iter().map(|left| left.replica).collect();
        assert_eq!(left, if stays { vec![] } else { vec![0] }, "{kind}");
        assert!(three.step(TRAIN, &feed(5, false), &mut commit).unwrap().committed);
        three.check_digests().unwrap();
    }
}

#[test]
fn the_loss_of_the_only_one_is_the_end() {
    let mut one = start(1, &[("replica-0:step-0:segment-0", "1*off->return(lose)")]);
    let error = error(&mut one, TRAIN, 5);
    let ReplicaError::NoneLeft { step: 0, left } = &error else { panic!("{error}") };
    assert!(left[0].why.contains("device lost: on purpose"), "{error}");
}

#[test]
fn a_replica_without_memory_for_it_looks_shard_by_shard() {
    let expected = error(&mut start(1, &[]), TRAIN, 13).to_string();
    // The plan of the step is loaded first, the plan that shows its sums second.
    let mut one = start(1, &[("replica-0:load", "1*off->1*return(out-of-memory)->off")]);
    assert_eq!(error(&mut one, TRAIN, 13).to_string(), expected);
    assert!(expected.contains("the output loss is not finite (and 1 more)"), "{expected}");
    assert_eq!((one.len(), one.read_state(0).unwrap()), (1, vec![0; 48]));
    assert!(one.step(TRAIN, &feed(13, false), &mut commit).unwrap().committed);
}

/// A program of two cuts, whose shards cannot run a few at once.
#[test]
fn where_nobody_can_tell_which_it_is_that_is_said_and_the_run_goes_on() {
    let mut feed = batch(0, BATCH);
    let x = train().inputs().iter().position(|input| input.name == "x").unwrap();
    feed.inputs[x] = bytes((0..BATCH * IN).map(|i| if i == 7 { f32::NAN } else { 0.5 })).into();
    let mut one = replicas(1, with(&[(0, 0, 0, "1*off->return(out-of-memory)")]));
    let before = all_states(&mut one);
    let error = one.step(0, &feed, &mut |_| unreachable!()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "step 0: a sum of segment 0 (which one, replica 0 cannot tell: on purpose: out of memory (1099511627776 bytes requested)) \
         is not finite"
    );
    assert!(all_states(&mut one) == before);
    assert!(run(&mut one) == run(&mut replicas(1, options())));
}
