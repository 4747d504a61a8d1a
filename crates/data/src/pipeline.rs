//! What happens to one sample, and to one batch: pure functions of (source, seed, epoch, position).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unisono_random::{Draws, Permutation};

use crate::batch::Stack;
use crate::schedule::Unit;
use crate::{Batch, BoxError, DataError, FieldSpec, Sample, Source};

pub(crate) type Transform = dyn Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync;

/// One transform in its place.
#[derive(Clone)]
pub(crate) struct Stage {
    /// What keys its draws.
    pub name: String,
    /// What errors call it: "map 'crop'".
    pub label: String,
    pub run: Arc<Transform>,
}

/// Everything that decides a sample's bytes.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub source: Arc<dyn Source>,
    pub stages: Vec<Stage>,
    pub seed: u64,
    pub shuffled: bool,
}

/// What the fields look like after each stage; never empty, and the last is what batches are made of.
pub(crate) type StageSpecs = Vec<Vec<FieldSpec>>;

impl Pipeline {
    /// Finds what each stage makes of the fields by running sample 0 as position 0 of epoch 0.
    pub fn probe(&self) -> Result<StageSpecs, DataError> {
        let mut specs = vec![self.source.fields().to_vec()];
        if self.stages.is_empty() {
            return Ok(specs);
        }
        let mut sample = fetch_checked(&*self.source, 0)?;
        for stage in &self.stages {
            self.apply(stage, &mut sample, 0, (0, 0))?;
            let found = sample.specs();
            check(&sample, &found, &stage.label, || self.source.describe(0))?;
            specs.push(found);
        }
        Ok(specs)
    }

    /// Makes the batch of a unit; `None` as soon as `stop` is seen set.
    pub fn batch(
        &self,
        unit: &Unit,
        specs: &StageSpecs,
        stop: &AtomicBool,
    ) -> Option<Result<Batch, DataError>> {
        let order = self.shuffled.then(|| Permutation::new(self.seed, unit.epoch, self.source.len()));
        let mut stack = match Stack::new(specs.last().map_or(&[], Vec::as_slice), unit.count as usize) {
            Ok(stack) => stack,
            Err(error) => return Some(Err(error)),
        };
        let mut indices = Vec::new();
        for position in unit.first..unit.first + unit.count {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            let index = order.as_ref().map_or(position, |order| order.at(position));
            match self.sample(index, (unit.epoch, position), specs) {
                Ok(sample) => stack.push(&sample),
                Err(error) => return Some(Err(error)),
            }
            indices.push(index);
        }
        let Unit { epoch, first, index_in_epoch, after, .. } = *unit;
        Some(Ok(Batch { epoch, first, index_in_epoch, indices, after, stacked: stack.finish() }))
    }

    /// Sample `index` of the source after all stages, each checked.
    fn sample(&self, index: u64, place: (u32, u64), specs: &StageSpecs) -> Result<Sample, DataError> {
        let mut sample = fetch_checked(&*self.source, index)?;
        for (stage, expected) in self.stages.iter().zip(specs.iter().skip(1)) {
            self.apply(stage, &mut sample, index, place)?;
            check(&sample, expected, &stage.label, || self.source.describe(index))?;
        }
        Ok(sample)
    }

    /// Runs one stage with its draws, keyed by (seed, "map", the stage's name, epoch, position).
    fn apply(
        &self,
        stage: &Stage,
        sample: &mut Sample,
        index: u64,
        (epoch, position): (u32, u64),
    ) -> Result<(), DataError> {
        let mut draws = Draws::of(self.seed, "map", &stage.name, epoch, position);
        guarded(&*self.source, index, &stage.label, || (stage.run)(sample, &mut draws))
    }
}

/// A sample as the source gives it, checked against the source's own fields.
pub(crate) fn fetch_checked(source: &dyn Source, index: u64) -> Result<Sample, DataError> {
    let sample = guarded(source, index, "fetch", || Ok(source.fetch(index)?))?;
    check(&sample, source.fields(), "fetch", || source.describe(index))?;
    Ok(sample)
}

/// Turns an error or a panic of `run` into an error naming sample and stage.
fn guarded<T>(
    source: &dyn Source,
    index: u64,
    stage: &str,
    run: impl FnOnce() -> Result<T, BoxError>,
) -> Result<T, DataError> {
    // What a panic leaves half-changed, the sample, is dropped with the error.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => {
            Err(DataError::Stage { sample: source.describe(index), stage: stage.into(), cause })
        }
        Err(panic) => Err(DataError::Panic {
            sample: source.describe(index),
            stage: stage.into(),
            message: panic_message(&*panic),
        }),
    }
}

/// The text that a panic was raised with.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// An error unless a sample's fields are as expected, and each holds as many values as its shape says.
fn check(
    sample: &Sample,
    expected: &[FieldSpec],
    stage: &str,
    describe: impl Fn() -> String,
) -> Result<(), DataError> {
    let stage = || stage.to_owned();
    if !sample.fields().map(|(name, _)| name).eq(expected.iter().map(|spec| &spec.name)) {
        return Err(DataError::Fields {
            sample: describe(),
            found: sample.fields().map(|(name, _)| name.to_string()).collect(),
            expected: expected.iter().map(|spec| spec.name.to_string()).collect(),
            stage: stage(),
        });
    }
    for ((name, field), spec) in sample.fields().zip(expected) {
        let (sample, field_name) = (&describe, || name.to_string());
        if field.values.dtype() != spec.dtype {
            let (found, expected) = (field.values.dtype(), spec.dtype);
            return Err(DataError::Dtype {
                sample: sample(),
                field: field_name(),
                found,
                expected,
                stage: stage(),
            });
        }
        if field.shape != spec.shape {
            let (found, expected) = (field.shape.clone(), spec.shape.clone());
            return Err(DataError::Shape {
                sample: sample(),
                field: field_name(),
                found,
                expected,
                stage: stage(),
            });
        }
        field.check_length(name).map_err(|cause| DataError::Stage {
            sample: sample(),
            stage: stage(),
            cause: cause.into(),
        })?;
    }
    Ok(())
}
