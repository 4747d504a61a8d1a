//! Checks of samples, and guards around stages that may fail or panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{BoxError, DataError, FieldSpec, Sample, Source};

/// Fetches a sample and checks it against the source's own fields.
pub(crate) fn fetch_checked(source: &dyn Source, index: u64) -> Result<Sample, DataError> {
    let sample = guarded(|| source.describe(index), "fetch", || Ok(source.fetch(index)?))?;
    check(&sample, source.fields(), "fetch", || source.describe(index))?;
    Ok(sample)
}

/// Returns the error of a source that is empty: the cause, where asking for its first sample tells it.
pub(crate) fn no_samples(source: &dyn Source) -> DataError {
    match guarded(|| source.describe(0), "fetch", || Ok(source.fetch(0))) {
        Ok(Err(cause @ DataError::Setting { .. })) => cause,
        _ => DataError::Setting { setting: "source", what: "it has no samples".into() },
    }
}

/// Runs a stage, and turns its error or panic into an error that names the sample and the stage.
pub(crate) fn guarded<T>(
    describe: impl Fn() -> String,
    stage: &str,
    run: impl FnOnce() -> Result<T, BoxError>,
) -> Result<T, DataError> {
    // The sample, which a panic may leave half-changed, is dropped with the error.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(DataError::Stage { sample: described(describe), stage: stage.into(), cause }),
        Err(panic) => {
            let (sample, message) = (described(describe), panic_message(&*panic));
            Err(DataError::Panic { sample, stage: stage.into(), message })
        }
    }
}

/// Returns what a source calls a sample that something is wrong with, even if saying so panics.
fn described(describe: impl Fn() -> String) -> String {
    catch_unwind(AssertUnwindSafe(describe))
        .unwrap_or_else(|panic| format!("a sample (Source::describe panicked: {})", panic_message(&*panic)))
}

/// Asks a source for something beside its samples, and turns a panic into an error that names `what`.
pub(crate) fn ask<T>(
    source: &dyn Source,
    what: &str,
    ask: impl FnOnce(&dyn Source) -> T,
) -> Result<T, DataError> {
    guarded(|| "the data".into(), &format!("Source::{what}"), || Ok(ask(source)))
}

/// Returns the text that a panic was raised with.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Checks that a sample's fields are as expected, and that each holds as many values as its shape says.
pub(crate) fn check(
    sample: &Sample,
    expected: &[FieldSpec],
    stage: &str,
    describe: impl Fn() -> String,
) -> Result<(), DataError> {
    let stage = || stage.to_owned();
    let describe = || described(&describe);
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
        let fits = |(&found, &expected): (&usize, &usize)| expected == FieldSpec::VARIES || found == expected;
        if field.shape.len() != spec.shape.len() || !field.shape.iter().zip(&spec.shape).all(fits) {
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

/// Checks that all f32 values are finite. The error names the first that is not.
pub(crate) fn check_finite(sample: &Sample) -> Result<(), DataError> {
    for (name, field) in sample.fields() {
        let Some(values) = field.values.as_f32() else { continue };
        if let Some(element) = values.iter().position(|value| !value.is_finite()) {
            return Err(DataError::NonFinite { field: name.to_string(), element, value: values[element] });
        }
    }
    Ok(())
}
