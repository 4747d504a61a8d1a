//! Steps in flight: the device decides whether a step commits, and the next step is submitted before the
//! results of the one before it are there. Nothing of what is computed, and no error, shows it.

use std::sync::Arc;

use crate::common::*;
use unisono_graph::{Conditions, InputDecl, Layout, Program, StateKind, Tape, Type};
use unisono_random::{Stream, below, stream};
use unisono_replica::{Feed, Outcome, Outputs, ReplicaError, Replicas, Verdict};

/// The indices of the outputs.
const LOSSES: usize = 0;
const TOTAL: usize = 2;

/// Returns a training program whose device can decide: a cut within the model, updates in place, and a state
/// that is replaced by a sum. `is_crowded` adds a state whose kernel has no buffer left for the verdict.
fn program(is_crowded: bool) -> Arc<Program> {
    let tape = Tape::new();
    let w = tape.state("w", &[4, IN], StateKind::Parameter);
    let m = tape.state("m", &[4, IN], StateKind::Optimizer);
    let seen = tape.state("seen", &[4], StateKind::Statistic);
    let x = tape.input("x", Type::sample(&[IN]));
    let weight = tape.input("weight", Type::sample(&[]));
    let probe = tape.input("probe", Type::sample(&[]));
    let rate = tape.input("rate", Type::global(&[]));
    let total = weight.sum_shards();
    let h = x.matmul_t(&w).tanh();
    let mean = h.sum_shards() / &total;
    let losses = (&h - &mean).sum(&[-1]) + x.sum(&[-1]);
    let loss = (&losses * &losses * &weight).sum_shards();
    let sum = tape.gradients(&loss, std::slice::from_ref(&w)).remove(0);
    let moment = &m * 0.9 + &sum / &total;
    tape.update(&m, &moment);
    tape.update(&w, &(&w - &(moment * &rate)));
    tape.update(&seen, &h.sum_shards());
    tape.output("losses", &(&losses * &probe));
    tape.output("loss", &loss);
    tape.output("total", &total);
    tape.output("later", &(&total * &rate));
    if is_crowded {
        let state = tape.state("crowded", &[4, IN], StateKind::Optimizer);
        let buffers = (0..5).map(|i| tape.input(&format!("buffer {i}"), Type::global(&[4, IN])));
        tape.update(&state, &buffers.fold(&state + &sum, |sum, next| sum + next));
    }
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    Arc::new(program.with_conditions(Conditions { finite: vec![LOSSES], nonzero: Some(TOTAL) }))
}

/// What is wrong with a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    /// A sum is not finite.
    Sum,
    /// A loss is not finite, and no sum shows it.
    Loss,
    /// All weights are 0.
    Weights,
    /// A new state is not finite.
    State,
}

fn feed(program: &Program, step: usize, samples: usize, wrong: Wrong) -> Feed {
    let one = |decl: &InputDecl| -> Arc<[u8]> {
        let last = samples - 1;
        let plant = |is_it: bool| move |i: usize| if is_it && i == last { f32::INFINITY } else { 1.0 };
        match decl.name.as_str() {
            "x" => {
                let mut values = rows(samples, IN, step).to_vec();
                if wrong == Wrong::Sum {
                    values[..4].copy_from_slice(&f32::NAN.to_le_bytes());
                }
                values.into()
            }
            "weight" if wrong == Wrong::Weights => bytes((0..samples).map(|_| 0.0)).into(),
            "weight" => bytes((0..samples).map(|_| 1.0)).into(),
            "probe" => bytes((0..samples).map(plant(wrong == Wrong::Loss))).into(),
            "rate" => bytes([if wrong == Wrong::State { f32::INFINITY } else { 0.05 }].into_iter()).into(),
            _ => bytes((0..decl.ty.count()).map(|_| 0.5)).into(),
        }
    };
    Feed { rows: samples, inputs: program.inputs().iter().map(one).collect(), ..Feed::default() }
}

/// Decides on the host as the device does.
fn decide(outputs: &Outputs) -> Verdict {
    let is_bad = outputs.floats(LOSSES).unwrap().iter().any(|loss| !loss.is_finite());
    let weightless = outputs.floats(TOTAL).unwrap()[0] == 0.0;
    if is_bad || weightless { Verdict::Skip } else { Verdict::Commit }
}

fn start(program: &Arc<Program>, count: usize, in_flight: usize) -> Replicas {
    start_with(program, count, options(), in_flight)
}

fn start_with(
    program: &Arc<Program>,
    count: usize,
    options: unisono_replica::Options,
    in_flight: usize,
) -> Replicas {
    let options = options.with(|options| options.steps_in_flight = Some(in_flight));
    let mut replicas = Replicas::start(&vec![adapter(); count], vec![Arc::clone(program)], options).unwrap();
    replicas.prepare(0, &[BATCH, 7, 1]).unwrap();
    reset(&mut replicas);
    replicas
}

fn reset(replicas: &mut Replicas) {
    replicas.write_state(0, &bytes((0..4 * IN).map(|i| (i % 7) as f32 * 0.1 - 0.3))).unwrap();
    for (index, count) in [(1, 4 * IN), (2, 4)] {
        replicas.write_state(index, &vec![0; 4 * count]).unwrap();
    }
}

type Made = Result<(Outputs, bool), String>;

fn made(outcome: Result<Outcome, ReplicaError>) -> Made {
    outcome.map(|outcome| (outcome.outputs, outcome.committed)).map_err(|error| error.to_string())
}

/// The bytes of all tensors of the state.
fn state(replicas: &mut Replicas) -> Vec<Vec<u8>> {
    (0..3).map(|index| replicas.read_state(index).unwrap()).collect()
}

/// Makes steps one by one up to the first that is bad. Returns what each gave, and the state.
fn one_by_one(
    replicas: &mut Replicas,
    program: &Program,
    batches: &[(usize, Wrong)],
) -> (Vec<Made>, Vec<Vec<u8>>) {
    let mut all = Vec::new();
    for (step, &(samples, wrong)) in batches.iter().enumerate() {
        all.push(made(replicas.step(0, &feed(program, step, samples, wrong), &mut decide)));
        if all.last().unwrap().is_err() || wrong == Wrong::Loss {
            break;
        }
    }
    (all, state(replicas))
}

/// Makes the same steps with two in flight. A step behind one that was skipped is begun again.
fn overlapped(
    replicas: &mut Replicas,
    program: &Program,
    batches: &[(usize, Wrong)],
) -> (Vec<Made>, Vec<Vec<u8>>) {
    let mut all = Vec::new();
    for (step, &(samples, wrong)) in batches.iter().enumerate() {
        let batch = feed(program, step, samples, wrong);
        assert!(replicas.begin(0, &batch).unwrap(), "step {step}");
        if step > 0 {
            all.push(made(replicas.finish()));
            match (all.last().unwrap(), batches[step - 1].1) {
                (Ok((_, false)), Wrong::Weights) => {
                    assert_eq!(replicas.in_flight(), 0, "a step behind one that was skipped");
                    assert!(replicas.begin(0, &batch).unwrap(), "step {step} again");
                }
                (Ok((_, true)), _) => {}
                _ => {
                    assert_eq!(replicas.in_flight(), 0, "a step behind a bad one");
                    return (all, state(replicas));
                }
            }
        }
    }
    all.push(made(replicas.finish()));
    (all, state(replicas))
}

#[test]
fn a_step_is_one_submission_and_nobody_waits_before_the_next() {
    let program = program(false);
    let mut replicas = start(&program, 1, 2);
    let counts = |replicas: &Replicas| {
        let report = &replicas.reports()[0];
        (report.submissions, report.waits)
    };
    for step in 0..3 {
        assert!(replicas.begin(0, &feed(&program, step, BATCH, Wrong::Nothing)).unwrap());
        if step > 0 {
            replicas.finish().unwrap();
        }
    }
    for step in 3..8 {
        let before = counts(&replicas);
        replicas.finish().unwrap();
        assert_eq!(counts(&replicas), (before.0, before.1 + 1), "a step's results take one wait");
        assert!(replicas.begin(0, &feed(&program, step, BATCH, Wrong::Nothing)).unwrap());
        assert_eq!(counts(&replicas), (before.0 + 1, before.1 + 1), "a step is one submission, and no wait");
    }
    while replicas.in_flight() > 0 {
        replicas.finish().unwrap();
    }
    assert_eq!(replicas.reports()[0].steps, 8);
}

/// Each step has memory of its own for its results, where those of the step but one before it still lie.
#[test]
fn a_step_whose_commands_were_dropped_is_the_end_of_the_last_replica() {
    let program = program(false);
    let dropping = with(&[(0, 3, 0, "return(drop:2)")]).with(|options| options.marks = Some(true));
    let mut replicas = start_with(&program, 1, dropping, 2);
    assert!(replicas.begin(0, &feed(&program, 0, BATCH, Wrong::Nothing)).unwrap());
    for step in 1..4 {
        assert!(replicas.begin(0, &feed(&program, step, BATCH, Wrong::Nothing)).unwrap());
        assert!(replicas.finish().unwrap().committed);
    }
    let error = replicas.finish().unwrap_err();
    let ReplicaError::NoneLeft { step: 3, left } = &error else { panic!("{error}") };
    assert!(left[0].why.contains("the driver reported commands as done"), "{error}");
}

#[test]
fn steps_in_flight_change_no_byte_and_no_error() {
    let program = program(false);
    let mut alone = start(&program, 1, 1);
    let mut three = start(&program, 3, 2);
    let mut two_steps = start(&program, 1, 2);
    let draws = Stream::new(0, stream("test", "steps in flight"));
    let kinds = [Wrong::Sum, Wrong::Loss, Wrong::Weights, Wrong::State];
    let sizes = [BATCH, 7, 1];
    for trial in 0..24 {
        let draw = |at: u64, below_this: u32| below(draws.word(0, trial, at), below_this) as usize;
        let batches: Vec<(usize, Wrong)> = (0..7)
            .map(|step| {
                let wrong =
                    if draw(2 * step, 4) == 0 { kinds[draw(2 * step + 1, 4)] } else { Wrong::Nothing };
                (sizes[draw(100 + step, 3)], wrong)
            })
            .collect();
        for replicas in [&mut alone, &mut three, &mut two_steps] {
            reset(replicas);
        }
        let unnumbered = |(all, state): (Vec<Made>, Vec<Vec<u8>>)| {
            // Each trial goes on counting where the one before it ended.
            let text = |made: Made| made.map_err(|error| error.split_once(": ").unwrap().1.to_owned());
            (all.into_iter().map(text).collect::<Vec<_>>(), state)
        };
        let expected = unnumbered(one_by_one(&mut alone, &program, &batches));
        assert_eq!(unnumbered(one_by_one(&mut three, &program, &batches)), expected, "{batches:?}");
        assert_eq!(unnumbered(overlapped(&mut two_steps, &program, &batches)), expected, "{batches:?}");
    }
}

#[test]
fn a_bad_step_is_named_by_its_number_and_the_steps_behind_it_do_not_happen() {
    let program = program(false);
    for wrong in [Wrong::Sum, Wrong::State] {
        let batches = [Wrong::Nothing, wrong, Wrong::Nothing].map(|wrong| (BATCH, wrong));
        let (expected, same) = one_by_one(&mut start(&program, 1, 1), &program, &batches);
        let mut replicas = start(&program, 1, 2);
        let (all, state) = overlapped(&mut replicas, &program, &batches);
        assert_eq!((&all, &state), (&expected, &same));
        assert!(all[1].as_ref().unwrap_err().starts_with("step 1: "), "{all:?}");
        // The next step is step 2 again, and nothing is left of the flag.
        reset(&mut replicas);
        assert!(replicas.begin(0, &feed(&program, 2, BATCH, Wrong::Sum)).unwrap());
        assert!(replicas.finish().unwrap_err().to_string().starts_with("step 2: "));
        assert!(replicas.begin(0, &feed(&program, 3, BATCH, Wrong::Nothing)).unwrap());
        assert!(replicas.finish().unwrap().committed);
    }
}

#[test]
fn what_needs_the_state_waits_for_the_steps_in_flight() {
    let program = program(false);
    let mut replicas = start(&program, 1, 2);
    let batch = feed(&program, 0, BATCH, Wrong::Nothing);
    assert_eq!(replicas.finish().unwrap_err(), ReplicaError::InFlight(0));
    assert!(replicas.begin(0, &batch).unwrap() && replicas.begin(0, &batch).unwrap());
    assert!(!replicas.begin(0, &batch).unwrap(), "two at most");
    assert_eq!(replicas.read_state(0).unwrap_err(), ReplicaError::InFlight(2));
    assert_eq!(replicas.step(0, &batch, &mut decide).unwrap_err(), ReplicaError::InFlight(2));
    assert_eq!(replicas.check_digests().unwrap_err(), ReplicaError::InFlight(2));
    replicas.finish().unwrap();
    replicas.finish().unwrap();
    replicas.read_state(0).unwrap();
}

#[test]
fn a_step_is_not_begun_where_the_host_has_to_decide() {
    let plain = program(false);
    let batch = |program: &Program| feed(program, 0, BATCH, Wrong::Nothing);
    assert!(!start(&plain, 2, 2).begin(0, &batch(&plain)).unwrap(), "two replicas");
    let crowded = program(true);
    assert!(crowded.conditions().is_none());
    assert!(!start(&crowded, 1, 2).begin(0, &batch(&crowded)).unwrap(), "no buffer left for the verdict");
    let few = options().with(|options| options.shards_at_once = Some(3));
    assert!(
        start_with(&plain, 1, few, 2).begin(0, &batch(&plain)).unwrap(),
        "a program of two cuts runs at once"
    );
}

#[test]
fn the_loss_of_the_replica_ends_the_steps_in_flight() {
    let program = program(false);
    for action in ["return(lose)", "return(panic)"] {
        let points = [("replica-0:step-1".to_owned(), action.to_owned())];
        let mut replicas = start_with(&program, 1, with_points(&points), 2);
        let batch = feed(&program, 0, BATCH, Wrong::Nothing);
        assert!(replicas.begin(0, &batch).unwrap());
        let error = match replicas.begin(0, &batch) {
            Ok(_) => replicas.finish().unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, ReplicaError::NoneLeft { .. }), "{error}");
        assert!(matches!(replicas.finish().unwrap_err(), ReplicaError::NoneLeft { .. }));
    }
}

/// Returns a training program with two tensors, each with what the optimizer keeps for it.
fn apart() -> Arc<Program> {
    let tape = Tape::new();
    let w = ["v", "w"].map(|name| tape.state(name, &[IN], StateKind::Parameter));
    let m = ["m", "n"].map(|name| tape.state(name, &[IN], StateKind::Optimizer));
    let x = tape.input("x", Type::sample(&[IN]));
    for (w, m) in w.iter().zip(&m) {
        let moment = m * 0.9 + (&x * w).tanh().sum_shards();
        tape.update(m, &moment);
        tape.update(w, &(w - &(moment * 0.05)));
    }
    let layout = Layout { states_apart: true, ..Layout::default() };
    let program = Program::compile_with(&tape.finish().unwrap(), layout).unwrap();
    Arc::new(program.with_conditions(Conditions { finite: vec![], nonzero: None }))
}

/// Half of what the optimizer keeps is lost with its owner: no later step may update the other half alone.
#[test]
fn no_step_is_in_flight_or_done_after_an_owner_was_lost() {
    let points = [("replica-1:step-1".to_owned(), "return(lose)".to_owned())];
    let options = with_points(&points).with(|o| (o.owners, o.steps_in_flight) = (Some(1), Some(2)));
    let mut two = Replicas::start(&vec![adapter(); 2], vec![apart()], options).unwrap();
    for at in 0..4 {
        let feed = Feed { rows: BATCH, inputs: vec![rows(BATCH, IN, at)], ..Feed::default() };
        assert_eq!(two.begin(0, &feed), Ok(false), "step {at}");
        let done = two.step(0, &feed, &mut commit);
        let is_lost = matches!(done, Err(ReplicaError::OwnersLost { .. }));
        assert!(if at == 0 { done.is_ok() } else { is_lost }, "step {at}: {done:?}");
    }
    let kept = bytes((0..IN).map(|_| 0.0));
    let written: Vec<bool> = (0..4).map(|state| two.write_state(state, &kept).is_ok()).collect();
    assert_eq!(written.iter().filter(|done| !**done).count(), 1, "{written:?}");
    assert!(written[..2] == [true, true], "{written:?}");
}

#[test]
fn one_replica_that_owns_everything_has_steps_in_flight() {
    let options = options().with(|o| (o.owners, o.steps_in_flight) = (Some(1), Some(2)));
    let mut one = Replicas::start(&[adapter()], vec![apart()], options).unwrap();
    one.prepare(0, &[BATCH]).unwrap();
    let feed = Feed { rows: BATCH, inputs: vec![rows(BATCH, IN, 0)], ..Feed::default() };
    assert_eq!(one.begin(0, &feed), Ok(true));
    assert!(one.finish().unwrap().committed);
}

#[test]
fn no_more_than_two_steps_are_in_flight_and_no_digest_is_taken_meanwhile() {
    let program = program(false);
    let mut one = start(&program, 1, 3);
    let feed = |at| feed(&program, at, BATCH, Wrong::Nothing);
    let begun: Vec<bool> = (0..3).map(|at| one.begin(0, &feed(at)).unwrap()).collect();
    assert_eq!(begun, [true, true, false]);
    assert_eq!(one.digests(), Err(ReplicaError::InFlight(2)));
    assert!(one.finish().unwrap().committed && one.finish().unwrap().committed);
    assert_eq!(one.digests().unwrap().len(), 1);
}
