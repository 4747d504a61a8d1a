//! A model with batch norm and dropout and a ragged last batch has one answer on any replicas, of any speed,
//! with any of them lost.

use std::sync::atomic::{AtomicUsize, Ordering};

use unisono::data::Position;
use unisono::{
    AdamW, Assignment, BatchNorm, Builder, Dense, Dropout, Relu, ReplicaReport, Sequential, Trainer,
};
use unisono_tests::{CLASSES, loader, perceptron};

const SAMPLES: usize = 90;
const BATCH: usize = 32;
/// The number of steps: two full batches and a ragged one, twice.
const STEPS: u64 = 6;

/// Returns a model with three cuts: two of batch norm, and one of the loss and the gradients.
fn normed() -> Builder {
    let model = Sequential::new()
        .add(Dense::new(12))
        .add(BatchNorm::new())
        .add(Relu)
        .add(Dropout::new(0.25))
        .add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(AdamW::new(0.01)).seed(3)
}

/// Returns a model with one cut, so a replica need not run all of its shards at once.
fn plain() -> Builder {
    perceptron(16)
}

struct Run {
    builder: Builder,
    replicas: usize,
    shards: usize,
    /// The fault points, with actions of the crate `fail`.
    faults: Vec<(String, String)>,
    /// The step before which another replica joins, if there is one.
    joins_at: Option<u64>,
}

impl Run {
    fn new(builder: fn() -> Builder, replicas: usize, shards: usize) -> Self {
        Self { builder: builder(), replicas, shards, faults: vec![], joins_at: None }
    }

    fn fault(mut self, point: String, action: &str) -> Self {
        self.faults.push((point, action.into()));
        self
    }

    fn with(mut self, change: impl FnOnce(Builder) -> Builder) -> Self {
        self.builder = change(self.builder);
        self
    }

    /// Runs all steps. Returns the state after every step, and the reports of the replicas.
    fn states(self) -> (Vec<String>, Vec<ReplicaReport>) {
        // Fault points are global and tests run in parallel, so each run has a scope of its own.
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let scope = format!("whole-{}:", RUNS.fetch_add(1, Ordering::Relaxed));
        for (point, action) in &self.faults {
            fail::cfg(format!("{scope}{point}"), action).unwrap();
        }
        let data = loader(SAMPLES, 5).unwrap().batch(BATCH);
        let builder = self.builder.replicas(self.replicas).global_batch(BATCH).shards(self.shards);
        let mut trainer = builder.fault_scope(&scope).digest_every(1).build(&data.fields().unwrap()).unwrap();
        let mut states = Vec::new();
        for (at, batch) in data.epochs(Position::default(), 2).unwrap().enumerate() {
            if self.joins_at == Some(at as u64) {
                assert_eq!(trainer.join("").unwrap(), self.replicas);
            }
            trainer.step(&batch.unwrap()).unwrap();
            states.push(trainer.state_sha256().unwrap());
        }
        assert_eq!(states.len() as u64, STEPS);
        (states, trainer.reports())
    }
}

fn lost(reports: &[ReplicaReport]) -> Vec<(usize, u64)> {
    reports.iter().filter_map(|report| Some((report.replica, report.left.as_ref()?.step))).collect()
}

#[test]
fn any_number_of_replicas_at_8_and_at_32_shards() {
    for builder in [normed, plain] {
        for shards in [8, 32] {
            let (one, _) = Run::new(builder, 1, shards).states();
            for replicas in [2, 3, 5, 8] {
                let (several, reports) = Run::new(builder, replicas, shards).states();
                assert_eq!(several, one, "{replicas} replicas, {shards} shards");
                assert_eq!(reports.iter().map(|r| r.samples).sum::<u64>(), 2 * SAMPLES as u64);
            }
        }
    }
}

#[test]
fn pieces_and_assignments_do_not_show() {
    for builder in [normed, plain] {
        let (one, _) = Run::new(builder, 1, 8).states();
        for (replicas, at_once, assignment) in [
            (1, 1, Assignment::Speed),
            (2, 1, Assignment::Speed),
            (3, 2, Assignment::Shuffled(4)),
            (2, 3, Assignment::Even),
        ] {
            let run =
                Run::new(builder, replicas, 8).with(|b| b.shards_at_once(at_once).assignment(assignment));
            assert_eq!(run.states().0, one, "{replicas} replicas, {at_once} shards at once, {assignment:?}");
        }
    }
}

#[test]
fn buckets_do_not_show() {
    for builder in [normed, plain] {
        let (one, _) = Run::new(builder, 1, 8).states();
        for bytes in [16, 256, 4 << 10, 1 << 20, 100 << 20] {
            for replicas in [1, 3] {
                let run = Run::new(builder, replicas, 8).with(|b| b.bucket_bytes(bytes));
                assert_eq!(run.states().0, one, "{replicas} replicas, buckets of {bytes} bytes");
            }
        }
    }
}

#[test]
fn slowed_replicas_do_not_show() {
    let (one, _) = Run::new(normed, 1, 8).states();
    let slowed = Run::new(normed, 3, 8)
        .fault("replica-1".into(), "30%return(slow:4)->sleep(3)")
        .fault("replica-2".into(), "50%sleep(20)");
    assert_eq!(slowed.states().0, one);
}

#[test]
fn a_replica_lost_at_any_step_does_not_show() {
    for (builder, segments) in [(normed as fn() -> Builder, 4), (plain, 2)] {
        let (one, _) = Run::new(builder, 1, 8).states();
        for step in 0..STEPS {
            let replica = step as usize % 3;
            let action = ["return(lose)", "return(panic)", "return(out-of-memory)", "return(transfer)"]
                [step as usize % 4];
            let segment = step % segments;
            let run = Run::new(builder, 3, 8)
                .fault(format!("replica-{replica}:step-{step}:segment-{segment}"), action);
            let (states, reports) = run.with(|b| b.shards_at_once(2)).states();
            assert_eq!(states, one, "replica {replica} at step {step}, segment {segment}: {action}");
            assert_eq!(lost(&reports), [(replica, step)]);
        }
    }
}

#[test]
fn two_of_three_lost_do_not_show() {
    let (one, _) = Run::new(normed, 1, 8).states();
    let run = Run::new(normed, 3, 8)
        .fault("replica-0:step-1".into(), "return(lose)")
        .fault("replica-2:step-4:segment-1".into(), "return(panic)");
    let (states, reports) = run.states();
    assert_eq!(states, one);
    assert_eq!(lost(&reports), [(0, 1), (2, 4)]);
}

#[test]
fn the_end_of_the_last_one_names_the_checkpoint_to_go_on_from() {
    let dir = tempfile::tempdir().unwrap();
    for point in ["replica-0:step-1", "replica-1:step-4"] {
        fail::cfg(format!("none-left:{point}"), "return(lose)").unwrap();
    }
    let data = loader(SAMPLES, 5).unwrap().batch(BATCH);
    let builder = plain().replicas(2).global_batch(BATCH).fault_scope("none-left:");
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.checkpoints(dir.path(), 2).unwrap();
    let error = trainer.fit(&data, None, 2).unwrap_err().to_string();
    assert!(error.starts_with("step 4: no replica is left; replica 0 ("), "{error}");
    assert!(error.ends_with("; the newest checkpoint is that of step 4: resume from it"), "{error}");
}

#[test]
fn a_replica_that_joins_does_not_show_and_works() {
    for builder in [normed, plain] {
        let (one, _) = Run::new(builder, 1, 8).states();
        for replicas in [1, 2] {
            let (states, reports) = Run { joins_at: Some(2), ..Run::new(builder, replicas, 8) }.states();
            assert_eq!(states, one, "{replicas} replicas and one more");
            let joined = &reports[replicas];
            assert_eq!(joined.steps, STEPS - 2);
            assert!(joined.shards > 0, "{joined:?}");
        }
    }
}

#[test]
fn audits_do_not_show() {
    let (one, _) = Run::new(normed, 1, 8).states();
    assert_eq!(Run::new(normed, 3, 8).with(|b| b.audit_every(1)).states().0, one);
}

/// A bit of one replica's state flips between two comparisons, in a run without audits. Checkpoints from
/// before are valid, and the broken state is not saved.
#[test]
fn nothing_is_saved_that_not_all_replicas_have() {
    let dir = tempfile::tempdir().unwrap();
    let data = loader(SAMPLES, 5).unwrap().batch(BATCH);
    fail::cfg("drift:replica-1:step-3", "return(state:0)").unwrap();
    let build = |scope: &str| {
        let builder = perceptron(16).replicas(2).global_batch(BATCH).audit_every(0).fault_scope(scope);
        builder.build(&data.fields().unwrap()).unwrap()
    };
    let mut trainer = build("drift:");
    trainer.checkpoints(dir.path(), 1).unwrap();
    let error = trainer.fit(&data, None, 2).unwrap_err().to_string();
    assert!(error.starts_with("the state may be wrong: the replicas' states differ: replica 0"), "{error}");
    drop(trainer);
    let mut resumed = build("");
    resumed.checkpoints(dir.path(), 1).unwrap();
    assert_eq!(resumed.resume().unwrap().map(|from| from.step), Some(3));
    resumed.fit(&data, None, 2).unwrap();
    let mut whole = build("");
    whole.fit(&data, None, 2).unwrap();
    assert_eq!(resumed.state_sha256().unwrap(), whole.state_sha256().unwrap());
}
