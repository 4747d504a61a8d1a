//! What a trainer trains, as it was compiled.

use unisono_data::Batch;
use unisono_gpu::Adapter;
use unisono_graph::{InputKind, OutputDecl, OutputKind, Precision, Program};
use unisono_replica::Feed;

use crate::Error;
use crate::compile::feed::{self, Names};
use crate::compile::fields::Fields;
use crate::compile::memory::MemoryEstimate;
use crate::compile::parts::Parts;
use crate::compile::programs::{ProgramId, Programs};
use crate::optimizers::Scalar;

/// A model with its loss, optimizer and metrics, compiled for samples with certain fields.
pub(crate) struct Plan {
    /// The model, the loss, the optimizer and the metrics.
    pub parts: Parts,
    /// The compiled graphs.
    pub programs: Programs,
    /// The fields of a sample.
    pub fields: Fields,
    /// What a training step of the global batch takes of a device's memory.
    pub memory: MemoryEstimate,
}

impl Plan {
    /// Returns one of the programs.
    pub fn program(&self, id: ProgramId) -> &Program {
        self.programs.get(id)
    }

    /// Returns the number of values that each metric has of a sample.
    pub fn metric_widths(&self) -> Vec<usize> {
        let outputs = self.programs.train().outputs();
        let is_value = |output: &&OutputDecl| output.kind == OutputKind::Value;
        let width = |name: &str| outputs.iter().filter(is_value).find(|output| output.name == name);
        let widths = self.parts.metrics.iter().map(|metric| width(metric.name()));
        widths.map(|output| output.map_or(0, |output| output.ty.count())).collect()
    }

    /// Checks a batch before any work is done on it, see [`feed::check`].
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn check(&self, batch: &Batch, names: Names<'_>) -> Result<(), Error> {
        feed::check(batch, &self.fields, &self.programs.losses, names)
    }

    /// Checks the model's inputs alone, as prediction needs them.
    ///
    /// # Errors
    /// The first thing that is wrong with one.
    pub fn check_input(&self, batch: &Batch) -> Result<(), Error> {
        let inputs = self.program(ProgramId::Predict).inputs().iter();
        for input in inputs.filter(|input| input.kind == InputKind::Data) {
            feed::check_field(batch, &input.name, self.fields.expect(&input.name)?, None)?;
        }
        feed::check_ids(batch, &self.fields, None)
    }

    /// Returns a program's inputs for a batch, the numbers of a step, and the seed that random ops draw from.
    ///
    /// # Errors
    /// The batch lacks a field.
    pub fn feed(&self, id: ProgramId, batch: &Batch, scalars: &[Scalar], seed: u64) -> Result<Feed, Error> {
        feed::feed(self.program(id), batch, scalars, seed)
    }
}

/// Checks that an adapter computes in a precision.
///
/// # Errors
/// [`Error::NoF16`].
pub(crate) fn supports(adapter: &Adapter, precision: Precision) -> Result<(), Error> {
    if precision == Precision::Mixed && !adapter.features.f16 {
        return Err(Error::NoF16 { adapter: adapter.label() });
    }
    Ok(())
}
