//! Finds where a number went bad: it runs the forward pass of one sample in the f64 interpreter.

use unisono_data::{Batch, Field, Values};
use unisono_graph::{Array, DType, Feed, Frame, Graph, InputKind, Output, OutputKind, RandomKey, interpret};

use crate::compile::carries;
use crate::compile::feed::{self, Names};
use crate::{Error, Trainer};

impl Trainer {
    /// Returns the error of a step whose numbers went bad: what went bad, and which tensor did so first.
    pub(super) fn not_finite(
        &mut self,
        batch: &Batch,
        loss_row: Option<usize>,
        what: String,
        names: Names<'_>,
    ) -> Error {
        let count = self.plan.programs_of(batch).forward.states.len();
        let states: Result<Vec<Vec<f32>>, _> = (0..count).map(|index| self.values(index)).collect();
        // The sample may be one of another machine.
        let whole = self.whole_batch(batch);
        let tensor = match (&states, loss_row, &whole) {
            (Ok(states), Some(row), Ok(whole)) => {
                first_bad(&self.plan.programs_of(batch).forward, whole, row, states, self.state.settings.seed)
            }
            _ => what.clone(),
        };
        let what = match loss_row {
            Some(row) => format!("the loss of {}", feed::sample_name(batch, row, names)),
            None => what,
        };
        Error::NotFinite { step: self.steps(), what, tensor }
    }
}

/// Names the first tensor of the forward pass that f32 cannot hold, for the sample in a row of a batch, given
/// all states' values.
///
/// The interpreter computes in f64, so a value that is too large for f32 counts as bad too.
fn first_bad(forward: &Graph, batch: &Batch, row: usize, states: &[Vec<f32>], seed: u64) -> String {
    if let Some(bad) = states.iter().position(|s| s.iter().any(|x| !x.is_finite())) {
        return forward.states[bad].name.clone();
    }
    let mut shown = forward.clone();
    shown.updates.clear();
    shown.outputs = (0..shown.nodes.len())
        .filter(|&id| shown.nodes[id].ty.dtype == DType::F32)
        .map(|node| Output { name: format!("{node:08}"), kind: OutputKind::Value, node })
        .collect();
    let key = RandomKey { seed, epoch: batch.epoch, position: batch.first + row as u64 };
    let inputs = forward.inputs.iter().map(|input| match input.kind {
        InputKind::Random => Array::new(&[8], key.words().iter().map(|&w| f64::from(w)).collect()),
        InputKind::Data | InputKind::Resident(_) => field_row(batch, &input.name, row),
        InputKind::Carry => field_row(batch, &carries::field(&input.name), row),
    });
    let array = |(values, decl): (&Vec<f32>, &unisono_graph::StateDecl)| {
        Array::new(&decl.ty.dims, values.iter().map(|&x| f64::from(x)).collect())
    };
    let feed = Feed {
        frame: Frame { shards: vec![1] },
        inputs: inputs.collect(),
        states: states.iter().zip(&forward.states).map(array).collect(),
    };
    let outcome = interpret(&shown, &feed);
    let bad = |x: &f64| !x.is_finite() || x.abs() > f64::from(f32::MAX);
    let first = shown.outputs.iter().find(|output| outcome.outputs[&output.name].data.iter().any(bad));
    first.map_or_else(
        || "none in f64: a rounding of f32 is the cause".into(),
        |output| forward.describe(output.node),
    )
}

/// A sample's row of a field; 0 where the batch has none of this name.
fn field_row(batch: &Batch, name: &str, row: usize) -> Array {
    batch.field(name).map_or_else(|| Array::scalar(0.0), |field| one_row(field, row))
}

/// Returns one row of a batch's field.
fn one_row(field: &Field, row: usize) -> Array {
    let width: usize = field.shape[1..].iter().product();
    let range = row * width..(row + 1) * width;
    let data = match &field.values {
        Values::F32(values) => values[range].iter().map(|&x| f64::from(x)).collect(),
        Values::I32(values) => values[range].iter().map(|&x| f64::from(x)).collect(),
    };
    let dims: Vec<usize> = std::iter::once(1).chain(field.shape[1..].iter().copied()).collect();
    Array::new(&dims, data)
}
