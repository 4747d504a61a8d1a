//! A trained model as ONNX, with what it answers to some samples.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use unisono::checkpoint::{WeightPrecision, write_whole};
use unisono::data::{Batch, Field, Loader, Values};
use unisono::{Prediction, Trainer};

use crate::Error;

/// The number of samples that are written.
const SAMPLES: usize = 8;

/// Writes a model to a directory as `model.onnx`, with its weights in a precision, and beside it
/// `model.json`: a few held-out samples, and what the model answers to them, by which a program that runs the
/// file can be checked.
///
/// # Errors
/// The model cannot be exported; no sample has the length that the model was built for; a file cannot be
/// written.
pub(crate) fn write(
    trainer: &mut Trainer,
    held_out: &Loader,
    dir: &Path,
    precision: WeightPrecision,
) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    trainer.export_onnx_as(dir.join("model.onnx"), precision)?;
    let batch = longest(held_out)?;
    trainer.reset_carries();
    let outputs = trainer.predict_batch_all(&batch)?;
    let inputs: Map<String, Value> =
        batch.fields().map(|(name, field)| (name.into(), input(field))).collect();
    let outputs: Map<String, Value> =
        outputs.iter().map(|found| (found.name.clone(), output(found))).collect();
    let path = dir.join("model.json");
    let text = json!({ "inputs": inputs, "outputs": outputs }).to_string();
    Ok(write_whole(path, &[text.as_bytes()])?)
}

/// Returns whether a file is the description of a model that a run has saved, which has the name of the
/// answers that are written here.
pub(crate) fn is_of_run(path: &Path) -> bool {
    let found = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    found.is_some_and(|found| found["format"] == "unisono-model")
}

/// Returns the first batch of samples of the longest length: the file takes no others.
fn longest(held_out: &Loader) -> Result<Batch, Error> {
    let fields = held_out.fields()?;
    let is_longest = |batch: &Batch| {
        let mut own = fields.iter().zip(batch.fields());
        own.all(|(spec, (_, field))| field.shape.get(1..) == Some(&spec.shape[..]))
    };
    for batch in held_out.clone().batch(SAMPLES).epoch(0)? {
        let batch = batch?;
        if is_longest(&batch) {
            return Ok(batch);
        }
    }
    Err("--onnx: no validation sample has the longest length".into())
}

fn input(field: &Field) -> Value {
    match &field.values {
        Values::F32(values) => json!({ "shape": field.shape, "dtype": "f32", "values": values }),
        Values::I32(values) => json!({ "shape": field.shape, "dtype": "i32", "values": values }),
    }
}

fn output(found: &Prediction) -> Value {
    json!({ "shape": found.shape, "dtype": "f32", "values": found.values })
}
