//! From a batch to what the replicas take, after the batch was checked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use unisono_data::{Batch, Position, Source, Values};
use unisono_graph::ops::BatchRow;
use unisono_graph::{InputKind, Program, RandomKey, Type};
use unisono_replica::Feed;

use crate::Error;
use crate::compile::carries;
use crate::compile::fields::{Fields, WEIGHT, field_type};
use crate::compile::objective::LossOn;
use crate::optimizers::Scalar;

/// Returns the inputs of a program for a batch: its fields, and the numbers of a step by name.
///
/// # Errors
/// The batch lacks a field that the program takes.
pub(crate) fn feed(
    program: &Program,
    batch: &Batch,
    scalars: &[Scalar],
    seed: u64,
    memory: &InputMemory,
) -> Result<Feed, Error> {
    let inputs = inputs(program, batch, scalars, memory)?;
    let gathered = program.graph().nodes.iter().filter_map(|node| node.op.downcast_ref::<BatchRow>());
    if let Some(rows) = gathered.map(|gathered| gathered.rows).min().filter(|rows| batch.len() > *rows) {
        let problem = format!(
            "the model or a loss compares the samples of global batches of up to {rows}, but this batch has {}: pass \
             at least that number to gather_batch or the loss",
            batch.len()
        );
        return Err(Error::setting("gather_batch", problem));
    }
    let random = RandomKey { seed, epoch: batch.epoch, position: batch.first };
    Ok(Feed { rows: batch.len(), inputs, random, held: None })
}

/// Returns the bytes of the inputs of a program: those of the rows that the batch has.
///
/// # Errors
/// The batch lacks a field that the program takes.
pub(crate) fn inputs(
    program: &Program,
    batch: &Batch,
    scalars: &[Scalar],
    memory: &InputMemory,
) -> Result<Vec<Arc<[u8]>>, Error> {
    let bytes = |name: &str| -> Result<Arc<[u8]>, Error> {
        match scalars.iter().find(|s| s.name == name) {
            Some(scalar) => Ok(scalar.value.to_le_bytes().as_slice().into()),
            None => memory.field(batch, name),
        }
    };
    let inputs = program.inputs().iter().map(|input| match input.kind {
        InputKind::Random | InputKind::Resident(_) => Ok(Arc::from([].as_slice())),
        InputKind::Data => bytes(&input.name),
        InputKind::Carry => bytes(&carries::field(&input.name)),
    });
    inputs.collect()
}

/// Memory of inputs that earlier steps are done with, for the next ones. The system takes large memory back
/// as soon as it is free, and to get it again costs several times what filling it does.
#[derive(Debug, Default)]
pub(crate) struct InputMemory(Mutex<VecDeque<Arc<[u8]>>>);

impl InputMemory {
    /// The bytes from which on memory is kept.
    const LARGE: usize = 64 << 10;
    /// The most inputs that are kept: some for each step in flight and the one after it.
    const MOST: usize = 6;

    /// Returns the bytes of a field of a batch.
    ///
    /// # Errors
    /// The batch has no such field.
    pub fn field(&self, batch: &Batch, name: &str) -> Result<Arc<[u8]>, Error> {
        let missing = || Error::Field { field: name.into(), expected: "a field".into(), got: "none".into() };
        Ok(self.copy(match &batch.field(name).ok_or_else(missing)?.values {
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::I32(values) => bytemuck::cast_slice(values),
        }))
    }

    /// Returns a copy of these bytes.
    fn copy(&self, bytes: &[u8]) -> Arc<[u8]> {
        if bytes.len() < Self::LARGE {
            return bytes.into();
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = kept.iter_mut().filter(|kept| kept.len() == bytes.len());
        for kept in same {
            if let Some(free) = Arc::get_mut(kept) {
                free.copy_from_slice(bytes);
                return Arc::clone(kept);
            }
        }
        let new: Arc<[u8]> = bytes.into();
        kept.push_back(Arc::clone(&new));
        if kept.len() > Self::MOST {
            kept.pop_front();
        }
        new
    }
}

/// The source that names the samples of a batch in errors. Without one they are called by their index.
pub(crate) type Names<'a> = Option<&'a dyn Source>;

/// Checks a batch before any work is done on it: fields, shapes, finite values, ids and labels in range,
/// weights.
///
/// # Errors
/// The first thing that is wrong with it.
pub(crate) fn check(
    batch: &Batch,
    fields: &Fields,
    losses: &[(LossOn, Type)],
    names: Names<'_>,
) -> Result<(), Error> {
    for (name, ty) in fields.iter() {
        check_field(batch, name, ty, names)?;
    }
    check_ids(batch, fields, |_| true, names)?;
    for name in &fields.weights {
        let weights = batch.field(name).and_then(|field| field.values.as_f32()).unwrap_or_default();
        if let Some(at) = weights.iter().position(|w| *w < 0.0) {
            let labels = fields.get(name).map_or(1, Type::count).max(1);
            let problem = match name == WEIGHT {
                true => "its weight is negative".to_owned(),
                false => format!("a weight in the field {name:?} is negative"),
            };
            return Err(bad_sample(batch, at / labels, names, problem));
        }
    }
    for (LossOn { on, loss, .. }, output) in losses {
        if let Some(Err((at, problem))) = on
            .target
            .as_deref()
            .and_then(|target| batch.field(target))
            .map(|targets| loss.check(output, targets))
        {
            return Err(bad_sample(batch, at, names, problem));
        }
    }
    Ok(())
}

/// Checks one field of a batch: its type, that it has as many values as the batch has samples of it, and that
/// they are finite.
///
/// # Errors
/// The field is missing or of another type or size, or a sample's value is not finite.
pub(crate) fn check_field(batch: &Batch, name: &str, ty: &Type, names: Names<'_>) -> Result<(), Error> {
    let wrong = |got: String| Error::Field { field: name.into(), expected: ty.to_string(), got };
    let field = batch.field(name).ok_or_else(|| wrong("no such field".into()))?;
    // A batch that a program put together itself may say anything of its fields.
    let rows = batch.rows().len();
    if field.shape.first() != Some(&rows) {
        return Err(wrong(format!(
            "shape {:?} in a batch of {rows} samples{}",
            field.shape,
            as_batch(&field.shape, ty)
        )));
    }
    let mut spec = field.spec(name);
    spec.shape.remove(0);
    let got = field_type(&spec);
    if &got != ty {
        return Err(wrong(format!("{got}{}", as_batch(&field.shape, ty))));
    }
    if Some(field.values.len()) != ty.count().checked_mul(rows) {
        return Err(wrong(format!("{} values for {rows} samples", field.values.len())));
    }
    match field.values.as_f32().and_then(not_finite) {
        Some(at) => {
            let value = field.values.as_f32().map_or(0.0, |v| v[at]);
            Err(bad_sample(batch, at / ty.count().max(1), names, format!("field {name:?} holds {value}")))
        }
        None => Ok(()),
    }
}

/// Returns what to do with a field that has the shape of a single sample.
fn as_batch(shape: &[usize], ty: &Type) -> String {
    if shape != ty.dims {
        return String::new();
    }
    let batch = [&[1], shape].concat();
    format!(" (the first axis counts samples: a batch of one has the shape {batch:?})")
}

/// Returns the place of the first number that is not finite. A block is checked without a branch for each
/// number, so that the compiler uses vectors.
fn not_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    let is_bad = |x: &f32| !x.is_finite();
    let block = values.chunks(BLOCK).position(|block| block.iter().fold(false, |bad, x| bad | is_bad(x)))?;
    let first = block * BLOCK;
    values[first..].iter().position(is_bad).map(|at| first + at)
}

/// Returns the position after a batch's last sample, in the batch's own epoch. The next epoch begins only
/// when this one was evaluated.
pub(crate) fn behind(batch: &Batch) -> Position {
    Position { epoch: batch.epoch, sample: batch.first + (batch.len() + batch.skipped.len()) as u64 }
}

/// Checks the ids that a batch's `needed` fields hold against the sizes of the tables that they index.
///
/// # Errors
/// The first sample with an id outside of its table.
pub(crate) fn check_ids(
    batch: &Batch,
    fields: &Fields,
    needed: impl Fn(&str) -> bool,
    names: Names<'_>,
) -> Result<(), Error> {
    let wrong =
        |(id, limit): (&i32, &usize)| *limit < usize::MAX && !(0..*limit as i64).contains(&i64::from(*id));
    for (name, limits) in fields.ids.iter().filter(|(name, _)| needed(name)) {
        let Some(Values::I32(ids)) = batch.field(name).map(|field| &field.values) else { continue };
        let dims = fields.get(name).map_or(&[][..], |ty| &ty.dims);
        for (row, sample) in ids.chunks_exact(limits.len().max(1)).enumerate() {
            if let Some(at) = sample.iter().zip(limits).position(wrong) {
                let at_place = place(name, at, dims);
                let (id, limit) = (sample[at], limits[at]);
                let more = match id {
                    0.. => ", the rows of its table: an Embedding has one more than the largest id",
                    _ => "",
                };
                let problem = format!("id {id}{at_place} is not in 0..{limit}{more}");
                return Err(bad_sample(batch, row, names, problem));
            }
        }
    }
    Ok(())
}

/// Names an element of a sample's field, as in ` at x[2, 0]`. Returns nothing where the field has one element
/// only.
fn place(field: &str, mut at: usize, dims: &[usize]) -> String {
    let mut place = vec![0; dims.len()];
    for (coordinate, extent) in place.iter_mut().zip(dims).rev() {
        (*coordinate, at) = (at % extent, at / extent);
    }
    if dims.is_empty() { String::new() } else { format!(" at {field}{place:?}") }
}

/// Returns the name of the sample in a row of a batch.
pub(crate) fn sample_name(batch: &Batch, row: usize, names: Names<'_>) -> String {
    let index = batch.indices.get(row).copied().unwrap_or_default();
    names.map_or_else(|| format!("sample {index}"), |source| source.describe(index))
}

fn bad_sample(batch: &Batch, row: usize, names: Names<'_>, problem: String) -> Error {
    let row = batch.rows().start + row;
    let sample = sample_name(batch, row, names);
    Error::Sample { epoch: batch.epoch, position: batch.position_of(row), sample, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_nobody_has_it_and_only_then() {
        let memory = InputMemory::default();
        let bytes = |value: u8| vec![value; InputMemory::LARGE];
        let first = memory.copy(&bytes(1));
        let at = first.as_ptr();
        let second = memory.copy(&bytes(2));
        assert_ne!(second.as_ptr(), at);
        drop(first);
        let third = memory.copy(&bytes(3));
        assert_eq!(third.as_ptr(), at);
        assert_eq!((second[0], third[0], third.len()), (2, 3, InputMemory::LARGE));
        // One of another length has memory of its own, and a small one is not kept.
        let [other, small] = [InputMemory::LARGE + 4, 8].map(|len| memory.copy(&vec![4; len]));
        assert_eq!((other.len(), small.len()), (InputMemory::LARGE + 4, 8));
        assert_eq!(memory.0.lock().unwrap().len(), 3);
        let all: Vec<_> = (0..20).map(|_| memory.copy(&bytes(5))).collect();
        assert_eq!((all.len(), memory.0.lock().unwrap().len()), (20, InputMemory::MOST));
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found_wherever_it_is() {
        let mut values = vec![1.0; 3000];
        assert_eq!(not_finite(&values), None);
        for (at, bad) in [(2999, f32::NAN), (1024, f32::INFINITY), (1023, f32::NEG_INFINITY), (0, f32::NAN)] {
            values[at] = bad;
            assert_eq!(not_finite(&values), Some(at));
        }
        assert_eq!(not_finite(&[]), None);
    }
}
