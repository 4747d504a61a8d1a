//! Every new value of a state is checked for numbers that are not finite, whatever computes it and wherever
//! it is stored. A step reports such a state after the commit, and names its first tensor.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Layout, Precision, Program, StateKind, Tape, Type, Var};
use unisono_random::{Stream, below};
use unisono_replica::{Feed, ReplicaError, Replicas};

const ROWS: usize = 6;
/// The inner size of a product or reduction that takes several chunks and a tree.
const LONG: usize = 3000;

/// A way to compute a new state: from an input that the test may plant a number in, the old state, and a
/// number of the last segment.
type New = fn(&Var, &Var, &Var) -> Var;

/// The name and shape of each input with the way in which the state of the same name is computed from it.
const WAYS: &[(&str, &[usize], New)] = &[
    ("a map", &[5], |x, old, one| old + x * one),
    ("a map of fours", &[3, 8], |x, old, one| old * 0.9 + x * one),
    ("a map of pairs", &[128, 512], |x, old, one| old * 0.9 + x * one),
    ("a second map", &[3, 8], |x, old, one| (old - x) * one),
    ("a map in another order", &[4, 4], |x, old, one| old.permute(&[1, 0]) + x * one),
    ("a map before the last segment", &[7], |x, _, _| x * 2.0),
    ("a map of eight buffers", &[4], |x, old, one| {
        // The input, the sum and the state are the other three.
        let buffers = (0..5).map(|i| old.tape().input(&format!("buffer {i}"), Type::global(&[4])));
        buffers.fold(x + one + old, |sum, next| sum + next)
    }),
    ("an input", &[6], |x, _, _| x.clone()),
    ("a view of an input", &[6, 2], |x, _, _| x.permute(&[1, 0]).reshape(&[6, 2])),
    ("a product", &[4, 4], |x, old, one| x.matmul(&(old + one))),
    ("a product before the last segment", &[4, 4], |x, old, _| x.matmul(&(old + 1.0))),
    ("a long product", &[4, LONG], |x, _, one| x.matmul_t(&(x * one))),
    ("a product with an epilogue", &[4, 4], |x, old, one| x.matmul(&(old + one)).relu() + one),
    ("a sum", &[4, 6], |x, _, one| (x * one).sum(&[-1])),
    ("a long sum", &[2, LONG], |x, _, one| (x * one).sum(&[-1])),
    ("a largest number", &[4, 6], |x, _, one| (x * one).max(&[-1])),
    ("stacked parts", &[4, 2], |x, _, one| (x * one).concat(&[&(x + one)], 0)),
];

/// Returns a program with a state for each way, and the shapes of the inputs by their names.
fn program(precision: Precision, f16: bool) -> Arc<Program> {
    let tape = Tape::with_precision(precision);
    let samples = tape.input("samples", Type::sample(&[4]));
    let one = samples.sum(&[-1]).sum_shards();
    for (name, dims, new) in WAYS {
        let x = tape.input(name, Type::global(dims));
        let shape: &[usize] = match *name {
            "a long product" => &[4, 4],
            "a sum" | "a largest number" => &[4],
            "a long sum" => &[2],
            "stacked parts" => &[8, 2],
            _ => dims,
        };
        let state = tape.state(name, shape, StateKind::Optimizer);
        tape.update(&state, &new(&x, &state, &one));
    }
    let sum = tape.state("a sum over shards", &[], StateKind::Statistic);
    tape.update(&sum, &one);
    let same = tape.state("the same", &[3], StateKind::Statistic);
    tape.update(&same, &(&same * 1.0));
    tape.output("one", &one);
    let graph = tape.finish().unwrap();
    Arc::new(Program::compile_with(&graph, Layout { f16, ..Layout::default() }).unwrap())
}

/// Returns a batch of numbers between 0 and 1, with one number planted in an input.
fn feed(program: &Program, planted: Option<(usize, usize, f32)>) -> Feed {
    let values = |(input, decl): (usize, &unisono_graph::InputDecl)| {
        let count = decl.ty.count() * if decl.name == "samples" { ROWS } else { 1 };
        let mut values = vec![0.25; count];
        if let Some((_, at, number)) = planted.filter(|(of, ..)| *of == input) {
            values[at % count] = number;
        }
        bytes(values.into_iter()).into()
    };
    Feed { rows: ROWS, inputs: program.inputs().iter().enumerate().map(values).collect(), ..Feed::default() }
}

/// Sets all states to zeros.
fn reset(replicas: &mut Replicas, program: &Program) {
    for (index, state) in program.states().iter().enumerate() {
        replicas.write_state(index, &vec![0; 4 * state.ty.count().max(1)]).unwrap();
    }
}

/// Returns the names of the states that the host reads as not finite.
fn not_finite(replicas: &mut Replicas, program: &Program) -> Vec<String> {
    let is_bad = |word: &[u8]| !f32::from_le_bytes(word.try_into().unwrap()).is_finite();
    let names = program.states().iter().map(|state| state.name.clone()).enumerate();
    names
        .filter(|(index, _)| replicas.read_state(*index).unwrap().chunks(4).any(is_bad))
        .map(|(_, name)| name)
        .collect()
}

/// Plants numbers in the inputs, and compares what each step reports with the states that the host reads.
fn check(program: &Arc<Program>, count: usize, trials: usize) {
    let options = options();
    let mut replicas = Replicas::start(&vec![adapter(); count], vec![Arc::clone(program)], options).unwrap();
    replicas.step(0, &feed(program, None), &mut commit).unwrap();
    assert!(not_finite(&mut replicas, program).is_empty());
    let draws = Stream::new(0, unisono_random::stream("test", "planted"));
    let planted = program.inputs().iter().enumerate().filter(|(_, input)| input.name != "samples");
    for (input, decl) in planted {
        for trial in 0..trials {
            let at = below(draws.word(0, input as u64, trial as u64), decl.ty.count() as u32) as usize;
            let number = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 3e38][trial % 5];
            reset(&mut replicas, program);
            let outcome = replicas.step(0, &feed(program, Some((input, at, number))), &mut commit);
            let bad = not_finite(&mut replicas, program);
            let what = format!("{number} at {at} of {}", decl.name);
            // The rectifier and the maximum make a finite number of some that are not.
            let lost = ["a product with an epilogue", "a largest number"];
            assert!(number.is_finite() || !bad.is_empty() || lost.contains(&&*decl.name), "{what}");
            match outcome {
                Ok(outcome) => assert!(outcome.committed && bad.is_empty(), "{what}: {bad:?} are missed"),
                Err(ReplicaError::StateNotFinite { tensor, more, .. }) => {
                    assert_eq!((Some(&tensor), more + 1), (bad.first(), bad.len()), "{what}");
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
    // What a state holds before a step that leaves it as it is counts too.
    reset(&mut replicas, program);
    let same = program.states().iter().position(|state| state.name == "the same").unwrap();
    replicas.write_state(same, &bytes([0.0, f32::NAN, 0.0].into_iter())).unwrap();
    let error = replicas.step(0, &feed(program, None), &mut commit).unwrap_err();
    assert!(error.to_string().ends_with("the new value of the same is not finite"), "{error}");
    // A sum over shards stops the step before it commits.
    let error = replicas.step(0, &feed(program, Some((0, 9, f32::NAN))), &mut commit).unwrap_err();
    assert!(matches!(error, ReplicaError::NotFinite { .. }), "{error}");
}

#[test]
fn a_new_state_that_is_not_finite_is_reported_whatever_computes_it() {
    let program = program(Precision::F32, false);
    [1, 3].into_iter().for_each(|count| check(&program, count, 5));
}

#[test]
fn in_mixed_precision_too() {
    let f16 = adapter().target().f16;
    check(&program(Precision::Mixed, f16), 1, 2);
}

/// A constant is a new value as well.
#[test]
fn a_constant_that_is_not_finite_is_reported() {
    let tape = Tape::new();
    let state = tape.state("constant", &[4], StateKind::Optimizer);
    let samples = tape.input("samples", Type::sample(&[4]));
    tape.output("one", &samples.sum(&[-1]).sum_shards());
    tape.update(&state, &tape.constant(f32::INFINITY).expand(unisono_graph::Lead::Global, &[4]));
    let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    let mut replicas = Replicas::start(&[adapter()], vec![Arc::clone(&program)], options()).unwrap();
    let error = replicas.step(0, &feed(&program, None), &mut commit).unwrap_err();
    assert_eq!(error.to_string(), "step 0: the new value of constant is not finite");
}

/// A replica whose memory is wrong makes a state that is not finite, and the others do not.
#[test]
fn a_state_that_only_some_replicas_find_not_finite_differs() {
    let tape = Tape::new();
    let state = tape.state("weight", &[2], StateKind::Parameter);
    let samples = tape.input("samples", Type::sample(&[4]));
    tape.update(&state, &(&state * samples.sum(&[-1]).sum_shards()));
    let program = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    let start = |faults: &[(usize, u64, usize, &str)]| {
        let mut replicas =
            Replicas::start(&vec![adapter(); 2], vec![Arc::clone(&program)], with(faults)).unwrap();
        // The sum is 6. Six times this number is just finite, and it is not with the bit that the fault
        // flips.
        replicas.write_state(0, &bytes([f32::from_bits(0x7e2a_0000), 1.0].into_iter())).unwrap();
        replicas.step(0, &feed(&program, None), &mut commit)
    };
    assert!(start(&[]).unwrap().committed);
    let error = start(&[(1, 0, 1, "return(state:0)")]).unwrap_err();
    assert!(matches!(error, ReplicaError::Digests { .. }), "{error}");
    let both = [(0, 0, 1, "return(state:0)"), (1, 0, 1, "return(state:0)")];
    assert_eq!(start(&both).unwrap_err().to_string(), "step 0: the new value of weight is not finite");
}
