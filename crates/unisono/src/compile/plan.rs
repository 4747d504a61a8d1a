//! What a trainer trains, as it was compiled.

use unisono_data::Batch;
use unisono_gpu::{Adapter, Arithmetic};
use unisono_graph::{InputKind, Layout, OutputDecl, OutputKind, Precision, Program};
use unisono_replica::{AuditReport, Feed};

use crate::Error;
use crate::compile::feed::{self, InputMemory, Names};
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
    /// How values are laid out in memory.
    pub layout: Layout,
    /// The same for samples of other lengths, those that were used last at the end.
    pub lengths: Vec<OfLength>,
    /// The most other lengths whose programs are kept.
    pub most_lengths: usize,
    /// The audits of programs that are no longer kept.
    pub dropped: AuditReport,
    /// What a training step of the global batch takes of a device's memory.
    pub memory: MemoryEstimate,
    /// Memory for the inputs of steps.
    pub inputs: InputMemory,
}

/// A model compiled for samples some of whose fields have another length.
pub(crate) struct OfLength {
    /// The compiled graphs.
    pub programs: Programs,
    /// The fields of a sample.
    pub fields: Fields,
    /// The number by which replicas know the first of the programs.
    pub first: usize,
}

impl Plan {
    /// Returns the fields, the programs, and the number of the first program, for samples such as those of a
    /// batch. For samples that nothing was compiled for, they are those of the trainer's own fields.
    fn of(&self, batch: &Batch) -> (&Fields, &Programs, usize) {
        let own = (&self.fields, &self.programs, 0);
        if self.lengths.is_empty() || self.fields.fit(batch) {
            return own;
        }
        let found = self.lengths.iter().find(|length| length.fields.fit(batch));
        found.map_or(own, |length| (&length.fields, &length.programs, length.first))
    }

    /// Returns whether the programs for samples such as those of a batch are there.
    pub fn is_compiled_for(&self, batch: &Batch) -> bool {
        self.fields.fit(batch) || self.lengths.iter().any(|length| length.fields.fit(batch))
    }

    /// Returns the fields of samples such as those of a batch.
    pub fn fields_of(&self, batch: &Batch) -> &Fields {
        self.of(batch).0
    }

    /// Returns the programs for samples such as those of a batch.
    pub fn programs_of(&self, batch: &Batch) -> &Programs {
        self.of(batch).1
    }

    /// Returns the number by which replicas know a program for samples such as those of a batch.
    pub fn index_of(&self, id: ProgramId, batch: &Batch) -> usize {
        self.of(batch).2 + id.index()
    }

    /// Returns the number by which replicas know the program of a training step on a batch in a phase.
    pub fn train_index(&self, batch: &Batch, phase: usize) -> usize {
        self.of(batch).2 + Programs::number_in(phase)
    }

    /// Returns the numbers by which replicas know all programs of training steps.
    pub fn train_indices(&self) -> Vec<usize> {
        let phases = 0..self.parts.phases.len().max(1);
        let firsts = std::iter::once(0).chain(self.lengths.iter().map(|length| length.first));
        firsts.flat_map(|first| phases.clone().map(move |phase| first + Programs::number_in(phase))).collect()
    }

    /// Returns one of the programs.
    pub fn program(&self, id: ProgramId) -> &Program {
        self.programs.get(id)
    }

    /// Returns the number of values that each metric has of a sample.
    pub fn metric_widths(&self) -> Vec<usize> {
        self.metric_widths_of(&self.programs)
    }

    /// Returns the number of values that each metric has of a sample in some programs.
    pub fn metric_widths_of(&self, programs: &Programs) -> Vec<usize> {
        let outputs = programs.train().outputs();
        let is_value = |output: &&OutputDecl| output.kind == OutputKind::Value;
        let width = |name: &str| outputs.iter().filter(is_value).find(|output| output.name == name);
        let widths = self.parts.objective().metrics.iter().map(|metric| width(metric.name()));
        widths.map(|output| output.map_or(0, |output| output.ty.count())).collect()
    }

    /// Checks a batch before any work is done on it, see [`feed::check`].
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn check(&self, batch: &Batch, names: Names<'_>) -> Result<(), Error> {
        let (fields, programs, _) = self.of(batch);
        feed::check(batch, fields, &programs.losses, names)
    }

    /// Checks the model's inputs alone, as prediction needs them.
    ///
    /// # Errors
    /// The first thing that is wrong with one.
    pub fn check_input(&self, batch: &Batch) -> Result<(), Error> {
        let (fields, programs, _) = self.of(batch);
        let inputs = programs.get(ProgramId::Predict).inputs();
        let is_field = |name: &str| !programs.averages.is_flag(name);
        for input in inputs.iter().filter(|input| input.kind == InputKind::Data && is_field(&input.name)) {
            feed::check_field(batch, &input.name, fields.expect(&input.name)?, None)?;
        }
        let is_read = |name: &str| inputs.iter().any(|input| input.name == name);
        feed::check_ids(batch, fields, is_read, None)
    }

    /// Returns the inputs of a training step in a phase for a batch.
    ///
    /// # Errors
    /// The batch lacks a field.
    pub fn feed_train(
        &self,
        phase: usize,
        batch: &Batch,
        scalars: &[Scalar],
        seed: u64,
    ) -> Result<Feed, Error> {
        feed::feed(self.programs_of(batch).train_in(phase), batch, scalars, seed, &self.inputs)
    }

    /// Returns a program's inputs for a batch, the numbers of a step, and the seed that random ops draw from.
    ///
    /// # Errors
    /// The batch lacks a field.
    pub fn feed(&self, id: ProgramId, batch: &Batch, scalars: &[Scalar], seed: u64) -> Result<Feed, Error> {
        feed::feed(self.programs_of(batch).get(id), batch, scalars, seed, &self.inputs)
    }
}

/// Selects adapters by names, with the CPU among them in an arithmetic where one is given.
///
/// # Errors
/// An entry fits no adapter, or an arithmetic is given and the CPU is not among the adapters.
pub(crate) fn selected(names: &[String], arithmetic: Option<Arithmetic>) -> Result<Vec<Adapter>, Error> {
    Ok(match arithmetic {
        Some(arithmetic) => unisono_gpu::select_in(names, arithmetic)?,
        None => unisono_gpu::select(names)?,
    })
}

/// Returns an adapter as it computes in a precision: with its matrix unit in use, if the precision asks for
/// that.
///
/// # Errors
/// [`Error::NoF16`], or the adapter has no matrix unit.
pub(crate) fn in_precision(adapter: &Adapter, precision: Precision) -> Result<Adapter, Error> {
    if precision.is_mixed() && !adapter.features.f16 {
        return Err(Error::NoF16 { adapter: adapter.label() });
    }
    match precision {
        Precision::MatrixUnits => Ok(adapter.with_matrix_units()?),
        Precision::F32 | Precision::Mixed => Ok(adapter.clone()),
    }
}

/// Probes the matrix units of adapters that use them, each kind once: no step is taken by a unit that is
/// wrong.
///
/// # Errors
/// A unit's results are further from the exact ones than rounding explains, or an adapter cannot be probed.
pub(crate) fn check_units(adapters: &[Adapter]) -> Result<(), Error> {
    each_unit(adapters).into_iter().try_for_each(|adapter| Ok(unisono_replica::probe(adapter).map(drop)?))
}

/// Returns a note for each kind of matrix unit in use that is slower than plain kernels. It is used all the
/// same: without it the results would have other bits.
pub(crate) fn unit_notes(adapters: &[Adapter]) -> Vec<String> {
    // Whoever cannot be timed is told of by the run itself, which uses the same kernels.
    let note = |adapter: &Adapter| unisono_replica::unit_pace(adapter).ok()??.note(adapter);
    each_unit(adapters).into_iter().filter_map(note).collect()
}

/// Returns one adapter of each machine that uses a matrix unit.
fn each_unit(adapters: &[Adapter]) -> Vec<&Adapter> {
    let mut each: Vec<&Adapter> = Vec::new();
    for adapter in adapters.iter().filter(|adapter| adapter.unit.is_some()) {
        let is_same = |other: &&Adapter| unisono_replica::machine(other) == unisono_replica::machine(adapter);
        if !each.iter().any(is_same) {
            each.push(adapter);
        }
    }
    each
}
