//! The section `carries`: what samples carry from one batch to the next. It lies on the host, by lane, so
//! that it does not depend on which replica computes a row.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};
use unisono_checkpoint::{Tensor, TensorDType, Tensors};
use unisono_data::{Batch, Field, Sample};
use unisono_graph::{InputKind, OutputDecl, OutputKind, Program};
use unisono_replica::Outputs;

use crate::Error;
use crate::compile::carries;
use crate::objective::tensors::take_of;
use crate::run::section::{Difference, Section};

/// The carries of a model. A lane is a row of the batch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Vec<String>")]
pub(crate) struct Carries {
    lanes: usize,
    carries: Vec<Carry>,
}

/// One carry of a model.
#[derive(Clone, Debug, PartialEq)]
struct Carry {
    /// The carry's full name, such as `0.h_l0`: that of the graphs' input and output.
    name: String,
    /// The shape: `[lanes, ...]`.
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Carries {
    /// Returns the carries that a program takes, with zeros in every lane.
    pub fn new(program: &Program, lanes: usize) -> Self {
        let carry = |name: &str, dims: &[usize]| {
            let shape = [&[lanes], dims].concat();
            Carry { name: name.into(), values: vec![0.0; shape.iter().product()], shape }
        };
        let inputs = program.inputs().iter().filter(|input| input.kind == InputKind::Carry);
        Self { lanes, carries: inputs.map(|input| carry(&input.name, &input.ty.dims)).collect() }
    }

    /// Returns whether the model carries nothing from batch to batch.
    pub fn is_empty(&self) -> bool {
        self.carries.is_empty()
    }

    /// Sets all lanes to zeros.
    pub fn reset(&mut self) {
        self.carries.iter_mut().for_each(|carry| carry.values.fill(0.0));
    }

    /// Adds each row's carries to a batch as fields. The rows of a batch that is smaller than a full
    /// one are the first lanes.
    ///
    /// # Errors
    /// The batch has more rows than there are lanes, or a sample was left out of it.
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
        let rows = batch.rows();
        self.add_to(&mut batch.stacked, rows);
        Ok(Cow::Owned(batch))
    }

    /// Adds the carries of some rows of a batch as fields to the fields of these rows.
    pub fn add_to(&self, stacked: &mut Sample, rows: Range<usize>) {
        for Carry { name, shape, values } in &self.carries {
            let row: usize = shape[1..].iter().product();
            let part = values.get(rows.start * row..rows.end * row).unwrap_or_default();
            let field = Field::f32([&[rows.len()], &shape[1..]].concat(), part);
            stacked.set(carries::field(name).as_str(), field);
        }
    }

    /// Takes what a step made of the carries of its rows. The other lanes keep theirs.
    pub fn take(&mut self, program: &Program, outputs: &Outputs) {
        for carry in &mut self.carries {
            let is_own = |output: &OutputDecl| output.kind == OutputKind::Carry && output.name == carry.name;
            let index = program.outputs().iter().position(is_own);
            let new = index.and_then(|index| outputs.floats(index)).unwrap_or_default();
            carry.values.iter_mut().zip(new).for_each(|(old, new)| *old = *new);
        }
    }

    /// Returns a carry's values by its name, such as `0.h_l0`: `[lanes, ...]`.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.carries.iter().find(|carry| carry.name == name).map(|carry| &*carry.values)
    }
}

/// Writes the names of the carries. Their values are tensors.
impl Serialize for Carries {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.carries.iter().map(|carry| &carry.name))
    }
}

impl From<Vec<String>> for Carries {
    /// Returns carries without values, which their tensors bring.
    fn from(names: Vec<String>) -> Self {
        let carry = |name| Carry { name, shape: Vec::new(), values: Vec::new() };
        Self { lanes: 0, carries: names.into_iter().map(carry).collect() }
    }
}

impl Section for Carries {
    fn tensors(&self) -> Result<Tensors, Error> {
        let tensor = |c: &Carry| Ok((c.name.clone(), Tensor::f32(&c.shape, &c.values)?));
        self.carries.iter().map(tensor).collect()
    }

    fn take_tensors(&mut self, _version: u32, tensors: &mut Tensors) -> Result<(), String> {
        for carry in &mut self.carries {
            let tensor = take_of(tensors, &carry.name, TensorDType::F32)?;
            carry.values = tensor.to_f32().unwrap_or_default();
            carry.shape = tensor.shape().to_vec();
        }
        Ok(())
    }

    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let mut problems = Vec::new();
        for own in &self.carries {
            let name = &own.name;
            match saved.carries.iter().find(|carry| carry.name == own.name) {
                None => problems.push(format!("it has no carry {name:?}")),
                Some(carry) if carry.shape != own.shape => {
                    problems.push(format!(
                        "the carry {name:?} is {:?}, the model's is {:?}",
                        carry.shape, own.shape
                    ));
                }
                Some(_) => {}
            }
        }
        let is_own = |carry: &Carry| self.carries.iter().any(|own| own.name == carry.name);
        let saved = saved.carries.iter().filter(|carry| !is_own(carry)).map(|carry| &*carry.name);
        let unknown: BTreeSet<&str> = saved.collect();
        problems.extend(unknown.into_iter().map(|name| format!("the model has no carry {name:?}")));
        problems.into_iter().map(|problem| Difference { problem, forcible: false }).collect()
    }

    /// Takes the values of the carries that the model has too, which [`Section::differences`] found to be
    /// all.
    fn resume(&mut self, saved: Self) {
        for carry in saved.carries {
            let own = self.carries.iter_mut().find(|own| own.name == carry.name && own.shape == carry.shape);
            own.into_iter().for_each(|own| own.values.clone_from(&carry.values));
        }
    }
}
