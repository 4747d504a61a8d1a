//! Sums are transferred while the backward pass goes on, and no result depends on that.

use std::sync::Arc;

use crate::common::{adapter, bytes};
use unisono_graph::{Conditions, Layout, Program, StateKind, Tape, Type};
use unisono_replica::{Activity, Feed, Interval, Options, ReplicaError, Replicas, Verdict};

const ROWS: usize = 32;
const WIDE: usize = 512;
const LAYERS: usize = 3;
const STEPS: u64 = 3;

/// A model of three layers of a megabyte each.
fn program(bucket_bytes: usize) -> Arc<Program> {
    let tape = Tape::new();
    let mut y = tape.input("x", Type::sample(&[WIDE]));
    let states: Vec<_> =
        (0..LAYERS).map(|i| tape.state(&format!("w{i}"), &[WIDE, WIDE], StateKind::Parameter)).collect();
    for state in &states {
        y = y.matmul_t(state).tanh();
    }
    let loss = (&y * &y).sum(&[-1]).sum_shards();
    for (state, gradient) in states.iter().zip(tape.gradients(&loss, &states)) {
        tape.update(state, &(state - &(&gradient * 1e-3)));
    }
    tape.output("loss", &loss);
    Arc::new(
        Program::compile_with(&tape.finish().unwrap(), Layout { bucket_bytes, ..Layout::default() }).unwrap(),
    )
}

fn options() -> Options {
    Options::default().with(|o| {
        o.global_batch = ROWS;
        o.shards = 8;
        o.timeline = true;
        o.audits = unisono_replica::Audits::Every(2);
    })
}

/// Returns replicas with the first state.
fn begin(count: usize, bucket_bytes: usize, options: Options) -> Replicas {
    let mut replicas =
        Replicas::start(&vec![adapter(); count], vec![program(bucket_bytes)], options).unwrap();
    for index in 0..LAYERS {
        // The first is 0, so that any other gradient shows in it.
        let value = |i| if i == 0 { 0.0 } else { ((i * 7 + index) % 23) as f32 * 4e-3 - 0.04 };
        let values = (0..WIDE * WIDE).map(value);
        replicas.write_state(index, &bytes(values)).unwrap();
    }
    replicas
}

fn feed(step: usize) -> Feed {
    let x = bytes((0..ROWS * WIDE).map(|i| ((i * 37 + step) % 97) as f32 / 31.0 - 1.5));
    Feed { rows: ROWS, inputs: vec![x.into()], ..Feed::default() }
}

/// Makes a few steps.
fn steps(replicas: &mut Replicas) {
    for step in 0..STEPS as usize {
        replicas.step(0, &feed(step), &mut |_| Verdict::Commit).unwrap();
    }
}

fn state(replicas: &mut Replicas) -> Vec<Vec<u8>> {
    (0..LAYERS).map(|i| replicas.read_state(i).unwrap()).collect()
}

/// Returns the state after a few steps, and what the replicas did meanwhile.
fn run(count: usize, bucket_bytes: usize, options: Options) -> (Vec<Vec<u8>>, Vec<Interval>) {
    let mut replicas = begin(count, bucket_bytes, options);
    steps(&mut replicas);
    replicas.check_digests().unwrap();
    (state(&mut replicas), replicas.take_timeline())
}

#[test]
fn buckets_and_overlap_do_not_show() {
    let (one, _) = run(1, 25 << 20, options());
    for bucket_bytes in [4 << 10, 1 << 20, 2 << 20, 100 << 20] {
        for (count, overlap) in [(2, true), (2, false), (3, true), (1, true)] {
            let (several, _) = run(count, bucket_bytes, options().with(|o| o.overlap = overlap));
            assert!(several == one, "{count} replicas, buckets of {bucket_bytes} bytes, overlap: {overlap}");
        }
    }
}

/// Where the host may not map the kernels' buffers, sums go through staging memory, as on most GPUs;
/// `checked` makes them do so. They are written there while replicas still compute, by several threads where
/// a bucket is large.
#[test]
fn sums_lie_where_devices_read_them_before_these_ask() {
    let (one, _) = run(1, 1 << 20, options());
    for (count, bucket_bytes, overlap) in [(2, 1 << 20, true), (3, 2 << 20, true), (2, 1 << 20, false)] {
        let staged = options().with(|o| (o.checked, o.overlap) = (true, overlap));
        let mut replicas = begin(count, bucket_bytes, staged);
        steps(&mut replicas);
        assert!(state(&mut replicas) == one, "{count} replicas, overlap: {overlap}");
        for report in replicas.reports() {
            // An audited step is made twice.
            assert!(report.received >= STEPS * (LAYERS * WIDE * WIDE * 4) as u64, "{report:?}");
            let is_right = if overlap { 0 < report.received_early } else { 0 == report.received_early };
            assert!(is_right && report.received_early < report.received, "{report:?}");
        }
    }
}

/// What lies there of a step that is given up is of no later step.
#[test]
fn sums_of_a_step_that_is_given_up_are_not_taken_for_those_of_another() {
    let (one, _) = run(1, 1 << 20, options());
    let mut two = begin(2, 1 << 20, options().with(|o| o.checked = true));
    for step in 0..STEPS as usize {
        // The first layer's gradient is the last one that is computed.
        let mut bad = feed(step);
        let huge = bytes((0..ROWS * WIDE).map(|i| if i == 0 { f32::MAX } else { 0.0 }));
        bad.inputs = vec![huge.into()];
        let skipped = two.step(0, &bad, &mut |_| Verdict::Skip);
        assert!(skipped.map_or(true, |outcome| !outcome.committed), "step {step}");
        two.step(0, &feed(step), &mut |_| Verdict::Commit).unwrap();
    }
    assert!(state(&mut two) == one);
}

#[test]
fn a_loss_behind_sums_in_place_and_a_wrong_transfer_are_noticed() {
    let (one, _) = run(1, 1 << 20, options());
    let faulty = |at, fault| {
        let options = options();
        crate::common::with(&[(1, 1, at, fault)]).with(|o| {
            (o.global_batch, o.shards, o.audits, o.checked) = (ROWS, 8, options.audits, true);
        })
    };
    for segment in [0, 1] {
        let mut two = begin(2, 1 << 20, faulty(segment, "return(lose)"));
        steps(&mut two);
        assert_eq!(two.left().len(), 1);
        assert!(state(&mut two) == one, "lost in segment {segment}");
    }
    let without = faulty(1, "return(exchange)").with(|o| o.audits = unisono_replica::Audits::Never);
    let mut two = begin(2, 1 << 20, without);
    steps(&mut two);
    assert!(matches!(two.check_digests(), Err(ReplicaError::Digests { .. })));
}

/// In a step without an audit each replica sends sums and then computes on before it waits for the others.
#[test]
fn sums_leave_while_backward_goes_on() {
    let times_sent = |bucket_bytes, overlap| {
        let (_, timeline) = run(2, bucket_bytes, options().with(|o| o.overlap = overlap));
        let of = |replica| {
            // The host waits for more of the step in the device or in the driver, since a software driver
            // computes while it submits.
            let work = |activity| if activity == Activity::Driver { Activity::Compute } else { activity };
            let own = timeline.iter().filter(|i| i.replica == replica && i.step == 0).map(|i| i.activity);
            let mut own: Vec<Activity> =
                own.filter(|activity| *activity != Activity::Device).map(work).collect();
            own.dedup();
            own.windows(2).filter(|pair| *pair == [Activity::Exchange, Activity::Compute]).count()
        };
        [of(0), of(1)]
    };
    let (layer, all) = (times_sent(1 << 20, true), times_sent(100 << 20, true));
    assert!((0..2).all(|r| layer[r] > all[r]), "a bucket a layer {layer:?}, one bucket {all:?}");
}

/// A step in flight that is diagnosed sends blocks early as well. They are of no program that ran before.
#[test]
fn blocks_of_a_diagnosis_are_not_taken_for_those_of_another_program() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[WIDE]));
    tape.output("sum", &x.sum(&[-1]).sum_shards());
    let small = Arc::new(Program::compile(&tape.finish().unwrap()).unwrap());
    let large = Arc::new(Program::clone(&program(1 << 20)).with_conditions(Conditions::default()));
    let never = options().with(|o| o.audits = unisono_replica::Audits::Never);
    let mut one = Replicas::start(&[adapter()], vec![large, small], never).unwrap();
    (0..2).for_each(|program| one.prepare(program, &[ROWS]).unwrap());
    one.step(1, &feed(0), &mut |_| Verdict::Commit).unwrap();
    let mut bad = feed(1);
    bad.inputs = vec![bytes((0..ROWS * WIDE).map(|_| f32::NAN)).into()];
    assert!(one.begin(0, &bad).unwrap());
    assert!(matches!(one.finish(), Err(ReplicaError::NotFinite { .. })));
}

/// Three gradients of a megabyte each are not finite because of the last of six shards. All of them are
/// named, whether some arrive before the others or not. (Six shards have no block of their own in the tree of
/// a run that shows its sums.)
#[test]
fn all_that_is_not_finite_is_found() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[WIDE]));
    let states: Vec<_> =
        (0..LAYERS).map(|i| tape.state(&format!("w{i}"), &[WIDE, WIDE], StateKind::Parameter)).collect();
    // Each gradient is a sum of its own.
    let outputs =
        states.iter().zip([1.0, 1.25, 1.5]).map(|(state, part)| x.matmul_t(state).sum(&[-1]) * part);
    let losses = outputs.reduce(|a, b| a + b).unwrap();
    for (state, gradient) in states.iter().zip(tape.gradients(&losses.sum_shards(), &states)) {
        tape.update(state, &(state - &gradient));
    }
    let layout = Layout { bucket_bytes: 1 << 20, ..Layout::default() };
    let program = Arc::new(Program::compile_with(&tape.finish().unwrap(), layout).unwrap());
    let rows = |row: usize| if row / 2 == 5 { 3e38 } else { 1.0 };
    let feed = Feed {
        rows: 12,
        inputs: vec![bytes((0..12 * WIDE).map(|i| rows(i / WIDE))).into()],
        ..Feed::default()
    };
    for overlap in [true, false] {
        let options = Options::default().with(|o| {
            o.global_batch = 12;
            o.shards = 6;
            o.overlap = overlap;
        });
        let mut one = Replicas::start(&[adapter()], vec![Arc::clone(&program)], options).unwrap();
        let error = one.step(0, &feed, &mut |_| unreachable!()).unwrap_err().to_string();
        assert_eq!(error, "step 0: the gradient of w2 is not finite (and 2 more)", "overlap: {overlap}");
    }
}
