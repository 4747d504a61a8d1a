//! From a batch to what the replicas take.

use std::sync::Arc;

use unisono_data::{Batch, Field, FieldSpec, Position, Source, Values};
use unisono_graph::{InputKind, Program, RandomKey, Type};
use unisono_replica::Feed;

use crate::compile::programs::{Fields, INPUT, TARGET, WEIGHT, field_type};
use crate::optimizers::Scalar;
use crate::run::carries;
use crate::{Error, Loss};

/// The inputs of a program for a batch.
pub(crate) fn feed(program: &Program, batch: &Batch, scalars: &[Scalar], seed: u64) -> Result<Feed, Error> {
    let bytes = |name: &str| -> Result<Arc<[u8]>, Error> {
        if let Some(scalar) = scalars.iter().find(|s| s.name == name) {
            return Ok(scalar.value.to_le_bytes().as_slice().into());
        }
        let missing = || Error::Field { field: name.into(), expected: "a field".into(), got: "none".into() };
        Ok(field_bytes(batch.field(name).ok_or_else(missing)?))
    };
    let inputs = program.inputs().iter().map(|input| match input.kind {
        InputKind::Random => Ok(Arc::from([].as_slice())),
        InputKind::Data => bytes(&input.name),
        InputKind::Carry => bytes(&carries::field(&input.name)),
    });
    let random = RandomKey { seed, epoch: batch.epoch, position: batch.first };
    Ok(Feed { rows: batch.len(), inputs: inputs.collect::<Result<_, _>>()?, random })
}

fn field_bytes(field: &Field) -> Arc<[u8]> {
    match &field.values {
        Values::F32(values) => bytemuck::cast_slice(values).into(),
        Values::I32(values) => bytemuck::cast_slice(values).into(),
    }
}

/// What errors call the samples of a batch: what their source does, or else their index in it.
pub(crate) type Names<'a> = Option<&'a dyn Source>;

/// Looks at a batch before any work is done on it: fields, shapes, finite values, labels in range, weights.
pub(crate) fn check(
    batch: &Batch,
    fields: &Fields,
    output: &Type,
    loss: &dyn Loss,
    names: Names<'_>,
) -> Result<(), Error> {
    for (name, ty) in fields.expected() {
        check_field(batch, name, &ty, names)?;
    }
    check_ids(batch, fields, names)?;
    if let Some(at) =
        batch.field(WEIGHT).and_then(|f| f.values.as_f32()).and_then(|w| w.iter().position(|w| *w < 0.0))
    {
        return Err(bad_sample(batch, at, names, "its weight is negative".into()));
    }
    match batch.field(TARGET).map(|targets| loss.check(output, targets)) {
        Some(Err((at, problem))) => Err(bad_sample(batch, at, names, problem)),
        _ => Ok(()),
    }
}

/// Looks at a loader's fields, before there is a batch.
pub(crate) fn check_specs(specs: &[FieldSpec], fields: &Fields) -> Result<(), Error> {
    for (name, ty) in fields.expected() {
        let got = specs.iter().find(|spec| &*spec.name == name).map(field_type);
        if got.as_ref() != Some(&ty) {
            let got = got.map_or_else(|| "no such field".into(), |got| got.to_string());
            return Err(Error::Field { field: name.into(), expected: ty.to_string(), got });
        }
    }
    Ok(())
}

/// Looks at one field of a batch.
pub(crate) fn check_field(batch: &Batch, name: &str, ty: &Type, names: Names<'_>) -> Result<(), Error> {
    let wrong = |got: String| Error::Field { field: name.into(), expected: ty.to_string(), got };
    let field = batch.field(name).ok_or_else(|| wrong("no such field".into()))?;
    let mut spec = field.spec(name);
    spec.shape = field.shape[1..].to_vec();
    let got = field_type(&spec);
    if &got != ty {
        return Err(wrong(got.to_string()));
    }
    match field.values.as_f32().and_then(|values| values.iter().position(|x| !x.is_finite())) {
        Some(at) => {
            let value = field.values.as_f32().map_or(0.0, |v| v[at]);
            Err(bad_sample(batch, at / ty.count().max(1), names, format!("field {name:?} holds {value}")))
        }
        None => Ok(()),
    }
}

/// The place behind a batch's last sample, in its own epoch: the next begins when this one was evaluated.
pub(crate) fn behind(batch: &Batch) -> Position {
    Position { epoch: batch.epoch, sample: batch.first + (batch.len() + batch.skipped.len()) as u64 }
}

/// Looks at the ids of a batch's input.
pub(crate) fn check_ids(batch: &Batch, fields: &Fields, names: Names<'_>) -> Result<(), Error> {
    let (Some(limits), Some(Values::I32(ids))) = (&fields.ids, batch.field(INPUT).map(|f| &f.values)) else {
        return Ok(());
    };
    let wrong =
        |(id, limit): (&i32, &usize)| *limit < usize::MAX && !(0..*limit as i64).contains(&i64::from(*id));
    for (row, sample) in ids.chunks_exact(limits.len().max(1)).enumerate() {
        if let Some(at) = sample.iter().zip(limits).position(wrong) {
            let at_place = place(at, &fields.input.dims);
            let problem = format!("id {}{at_place} is not in 0..{}", sample[at], limits[at]);
            return Err(bad_sample(batch, row, names, problem));
        }
    }
    Ok(())
}

/// Which element of a sample's input: ` at x[2, 0]`; nothing where there is but one.
fn place(mut at: usize, dims: &[usize]) -> String {
    let mut place = vec![0; dims.len()];
    for (coordinate, extent) in place.iter_mut().zip(dims).rev() {
        (*coordinate, at) = (at % extent, at / extent);
    }
    if dims.is_empty() { String::new() } else { format!(" at {INPUT}{place:?}") }
}

/// The name of the sample in a row of a batch.
pub(crate) fn sample_name(batch: &Batch, row: usize, names: Names<'_>) -> String {
    let index = batch.indices.get(row).copied().unwrap_or_default();
    names.map_or_else(|| format!("sample {index}"), |source| source.describe(index))
}

fn bad_sample(batch: &Batch, row: usize, names: Names<'_>, problem: String) -> Error {
    let sample = sample_name(batch, row, names);
    Error::Sample { epoch: batch.epoch, position: batch.first + row as u64, sample, problem }
}
