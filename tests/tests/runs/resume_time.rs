//! Resuming in the middle of an epoch takes the same time at any position, because no sample before it is
//! read, shuffled or skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unisono::checkpoint::{Store, newest};
use unisono::data::{DataError, Field, FieldSpec, Loader, Sample, Source};
use unisono::{Dense, MeanSquaredError, Observer, Sequential, Step, Stop, Trainer};

/// The number of samples. An epoch would take years, so a loader that reads everything before a position
/// would never reach it.
const SAMPLES: u64 = 1 << 50;
const BATCH: u64 = 16;

/// A source that computes each sample from its index. It counts the samples that are fetched.
#[derive(Clone, Debug, Default)]
struct Endless(Arc<AtomicU64>);

impl Source for Endless {
    fn len(&self) -> u64 {
        SAMPLES
    }
    fn fields(&self) -> &[FieldSpec] {
        static FIELDS: std::sync::LazyLock<Vec<FieldSpec>> = std::sync::LazyLock::new(|| {
            let spec = |name: &str| FieldSpec {
                name: name.into(),
                dtype: unisono::data::FieldDType::F32,
                shape: vec![2],
            };
            vec![spec("x"), spec("y")]
        });
        &FIELDS
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let x = (index % 1000) as f32 / 1000.0;
        Ok(Sample::new().with("x", Field::f32([2], [x, 1.0 - x])).with("y", Field::f32([2], [x, x])))
    }
}

/// An observer that stops the run after the first step.
struct First(Stop);

impl Observer for First {
    fn step(&mut self, _: &Step) {
        self.0.ask();
    }
}

/// Resumes at a position of an epoch and takes a step. Returns how long that took, and how many samples were
/// read for it.
fn resumed_at(sample: u64) -> (Duration, u64) {
    let dir = tempfile::tempdir().unwrap();
    let source = Endless::default();
    let loader = Loader::new(source.clone()).shuffle(5).threads(2).prefetch(2);
    let build = |stop: &Stop| {
        let trainer = Trainer::builder(Sequential::new().add(Dense::new(2))).loss(MeanSquaredError);
        let trainer = trainer.global_batch(BATCH as usize).replicas(1).observer(First(stop.clone()));
        let mut trainer = trainer.build(&loader.fields().unwrap()).unwrap();
        trainer.stop_on(stop);
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer
    };
    let stop = Stop::new();
    let mut trainer = build(&stop);
    trainer.fit(&loader, None, 1).unwrap();
    drop(trainer);
    // Replace the checkpoint by that of the same run at this position.
    let mut saved = newest(dir.path()).unwrap().unwrap();
    let steps = sample / BATCH;
    let position = &mut saved.contents.trainer["sections"]["position"]["value"];
    position["sample"] = sample.into();
    position["step"] = steps.max(1).into();
    Store::open(dir.path()).unwrap().save(steps.max(1), &saved.contents).unwrap();

    let stop = Stop::new();
    let mut trainer = build(&stop);
    let (before, started) = (source.0.load(Ordering::SeqCst), Instant::now());
    assert_eq!(trainer.resume().unwrap().unwrap().step, steps.max(1));
    trainer.fit(&loader, None, 1).unwrap();
    assert_eq!(trainer.steps(), steps.max(1) + 1);
    (started.elapsed(), source.0.load(Ordering::SeqCst) - before)
}

#[test]
fn resuming_takes_the_same_at_the_first_and_at_the_last_step_of_an_epoch() {
    let (first, last) = (resumed_at(0), resumed_at(SAMPLES - BATCH));
    // No batch follows the last step, so none is read ahead.
    assert!(
        last.1 <= first.1,
        "{} samples are read to resume at the last step, {} at the first",
        last.1,
        first.1
    );
    assert!(last.1 >= BATCH && last.1 <= 2 * BATCH, "{} samples for one batch", last.1);
    let (slow, fast) = (last.0.max(first.0), last.0.min(first.0));
    // What takes time for each sample before the position would take days.
    assert!(slow < fast + Duration::from_secs(30), "{first:?} at the first, {last:?} at the last");
}
