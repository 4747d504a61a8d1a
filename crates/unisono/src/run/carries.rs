//! What samples carry from one batch to the next: on the host, by lane, so that it follows no replica.

use std::borrow::Cow;
use std::collections::BTreeMap;

use unisono_checkpoint::{Tensor, Tensors};
use unisono_data::{Batch, Field};
use unisono_graph::{InputKind, OutputDecl, OutputKind, Program, Tape};
use unisono_replica::Outputs;

use crate::Context;
use crate::{Error, Trainer};

/// The carries of a model. A lane is a row of the batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carries {
    lanes: usize,
    carries: Vec<Carry>,
}

#[derive(Clone, Debug)]
struct Carry {
    /// The carry's full name, such as `0.h_l0`.
    name: String,
    /// `[lanes, ...]`.
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Makes what a model keeps an output of its graph.
pub(crate) fn trace(tape: &Tape, cx: &Context) {
    let kept = cx.carries().iter().filter_map(|carry| Some((&carry.var, carry.kept.as_ref()?)));
    kept.for_each(|(carry, value)| tape.keep(carry, value));
}

/// The field of a batch that holds the values of a carry: beside the loader's own fields, whatever these are called.
pub(crate) fn field(name: &str) -> String {
    format!("carry {name}")
}

/// The first carry that would only be known when the step is already committed.
pub(crate) fn too_late(program: &Program) -> Option<&str> {
    let late = |segment: usize| segment + 1 == program.segments();
    let carries = program.outputs().iter().filter(|output| output.kind == OutputKind::Carry);
    carries.filter(|output| late(output.segment)).map(|output| &*output.name).next()
}

impl Carries {
    /// Those that a program takes, zeros in every lane.
    pub fn new(program: &Program, lanes: usize) -> Self {
        let carry = |name: &str, dims: &[usize]| {
            let shape = [&[lanes], dims].concat();
            Carry { name: name.into(), values: vec![0.0; shape.iter().product()], shape }
        };
        let inputs = program.inputs().iter().filter(|input| input.kind == InputKind::Carry);
        Self { lanes, carries: inputs.map(|input| carry(&input.name, &input.ty.dims)).collect() }
    }

    /// Zeros in every lane.
    pub fn reset(&mut self) {
        self.carries.iter_mut().for_each(|carry| carry.values.fill(0.0));
    }

    /// A batch with each row's carries as fields. A batch smaller than the others has the first lanes.
    pub fn with<'a>(&self, batch: &'a Batch) -> Result<Cow<'a, Batch>, Error> {
        if self.carries.is_empty() {
            return Ok(Cow::Borrowed(batch));
        }
        if let Some(index) = batch.skipped.first() {
            let problem = format!(
                "sample {index} was left out of its batch, so the rows after it would go on with other rows' carries"
            );
            return Err(Error::setting("carries", problem));
        }
        let rows = batch.len();
        if rows > self.lanes {
            return Err(Error::setting(
                "carries",
                format!("a batch of {rows} samples in {} lanes", self.lanes),
            ));
        }
        let mut batch = batch.clone();
        for Carry { name, shape, values } in &self.carries {
            let row: usize = shape[1..].iter().product();
            let field = Field::f32([&[rows], &shape[1..]].concat(), &values[..rows * row]);
            batch.stacked.set(self::field(name).as_str(), field);
        }
        Ok(Cow::Owned(batch))
    }

    /// Takes what a step made of the carries of its rows; the other lanes keep theirs.
    pub fn take(&mut self, program: &Program, outputs: &Outputs) {
        for carry in &mut self.carries {
            let is_own = |output: &OutputDecl| output.kind == OutputKind::Carry && output.name == carry.name;
            let index = program.outputs().iter().position(is_own);
            let new = index.and_then(|index| outputs.floats(index)).unwrap_or_default();
            carry.values.iter_mut().zip(new).for_each(|(old, new)| *old = *new);
        }
    }

    /// For a checkpoint: `[lanes, ...]` each.
    pub fn tensors(&self) -> Result<Tensors, Error> {
        let tensor = |c: &Carry| Ok((c.name.clone(), Tensor::f32(&c.shape, &c.values)?));
        self.carries.iter().map(tensor).collect()
    }

    /// What a checkpoint's tensors say, or what does not fit.
    pub fn of(&self, tensors: &Tensors) -> Result<Self, String> {
        let mut found = self.clone();
        let mut unknown: BTreeMap<&String, &Tensor> = tensors.iter().collect();
        for Carry { name, shape, values } in &mut found.carries {
            let tensor = unknown.remove(name).ok_or_else(|| format!("it has no carry {name:?}"))?;
            if tensor.shape() != shape || tensor.bytes().len() != 4 * values.len() {
                return Err(format!("the carry {name:?} is {:?}, the model's is {shape:?}", tensor.shape()));
            }
            let words = tensor.bytes().as_chunks::<4>().0.iter();
            values.iter_mut().zip(words).for_each(|(value, &word)| *value = f32::from_le_bytes(word));
        }
        match unknown.keys().next() {
            Some(name) => Err(format!("the model has no carry {name:?}")),
            None => Ok(found),
        }
    }
}

impl Trainer {
    /// Sets the carries of all lanes back to zeros, those of training and those that [`Trainer::predict_batch`] goes on with.
    ///
    /// [`Trainer::fit`] does so at the start of every epoch, [`Trainer::evaluate`] and [`Trainer::predict`] for their own at
    /// their start.
    pub fn reset_carries(&mut self) {
        self.carries.reset();
        self.using.reset();
    }

    /// What training carries to its next step, by name, such as `0.h_l0`: `[lanes, ...]`, a lane a row of the batch.
    pub fn carry(&self, name: &str) -> Option<&[f32]> {
        let mut carries = self.carries.carries.iter();
        carries.find(|carry| carry.name == name).map(|carry| &*carry.values)
    }
}
