//! Launches that compute several units together on a GPU: rows, sums over samples, the gradients of an
//! attention, and products with the maps behind them. A software adapter computes each unit on its own, since
//! it is slow at workgroup memory and barriers.

use std::collections::BTreeMap;

use unisono_shaders::{Params, ReduceParams};

use super::emitter::{Emitter, Step};
use super::pointwise::MOST_IN_FOURS;
use crate::codegen::{Bound, MOST_CHUNKS, RowKernel, WORKGROUP};
use crate::fuse::{AttentionLaunch, Rounded, RowGroup, UnitKind};
use crate::plan::WorkKind;
use crate::plan::target::Machine;
use crate::program::{FinishKernel, UnitKernels};
use crate::trace::{GraphError, NodeId};

/// What is launched when a unit's turn comes.
#[derive(Clone, Copy)]
pub(super) enum Merged<'a> {
    /// The unit is computed with another one, before or after.
    Nothing,
    /// The unit is the last one of a group of rows.
    Rows(&'a RowGroup, &'a RowKernel),
    /// The unit is the last one of a group of sums over samples.
    Columns(&'a [usize], &'a Bound),
    /// The unit is the last one of those whose attention one launch computes, together with the roundings of
    /// their results.
    Attention(&'a [usize], &'a [Rounded]),
    /// The unit is a product, which is computed with the map behind it.
    Finish(&'a FinishKernel),
}

impl<'a> Merged<'a> {
    /// Returns the units that are done with this launch and whose sums over shards may follow.
    pub fn units(self) -> &'a [usize] {
        match self {
            Self::Nothing => &[],
            Self::Rows(group, _) => &group.units,
            Self::Columns(units, _) => units,
            Self::Attention(units, _) => units,
            Self::Finish(kernel) => std::slice::from_ref(&kernel.finish.product),
        }
    }

    /// Returns all units that this launch computes.
    pub fn computed(self) -> impl Iterator<Item = usize> {
        let map = if let Self::Finish(kernel) = self { Some(kernel.finish.map) } else { None };
        let rounded = if let Self::Attention(_, rounded) = self { rounded } else { &[] };
        self.units().iter().copied().chain(map).chain(rounded.iter().map(|own| own.unit))
    }
}

impl<'a> Emitter<'a> {
    /// Returns what is launched for the units that are not computed on their own.
    pub(super) fn merge_launches(&self) -> BTreeMap<usize, Merged<'a>> {
        let mut due = BTreeMap::new();
        if self.target.machine != Machine::Gpu {
            return due;
        }
        let mut add = |units: &[usize], launch: Merged<'a>| {
            due.extend(units.iter().map(|&unit| (unit, Merged::Nothing)));
            due.extend(units.last().map(|&unit| (unit, launch)));
        };
        // A program has a segment for each norm of the batch. What other segments launch is passed by first.
        let own = self.program.units_of(self.segment);
        let is_here = |units: &[usize]| units.iter().any(|unit| own.contains(unit));
        for (group, kernel) in self.program.rows.iter().filter(|(group, _)| is_here(&group.units)) {
            let kernel = self.program.row_kernel(group, kernel);
            if self.target.can_run(&kernel.bound.kernel) {
                add(&group.units, Merged::Rows(group, kernel));
            }
        }
        for (units, kernel) in self.program.columns.iter().filter(|(units, _)| is_here(units)) {
            let chunks = self.column_chunks(units[0]);
            let is_long = self.reduce_chunks(self.program.fusion.units[units[0]].roots[0]) > 1;
            if is_long
                && chunks <= MOST_CHUNKS
                && let Some(bound) = self.program.column_kernel(units, kernel)
                && self.target.can_run(&bound.kernel)
            {
                add(units, Merged::Columns(units, bound));
            }
        }
        for AttentionLaunch { units, rounded } in &self.program.attentions {
            if !is_here(units) {
                continue;
            }
            let joint = |rounded: &[Rounded]| self.attends_together(units, rounded);
            let rounded: &[Rounded] = if joint(rounded) { rounded } else { &[] };
            if joint(rounded) {
                add(units, Merged::Attention(units, rounded));
                rounded.iter().for_each(|own| add(&[own.unit], Merged::Nothing));
            }
        }
        for kernel in &self.program.finishes {
            let units = [kernel.finish.map, kernel.finish.product];
            if is_here(&units) && self.is_finished(kernel) {
                add(&units, Merged::Finish(kernel));
            }
        }
        due
    }

    pub(super) fn launch_merged(&mut self, launch: Merged<'a>) -> Result<(), GraphError> {
        match launch {
            Merged::Nothing => Ok(()),
            Merged::Rows(group, kernel) => self.row_group(group, kernel),
            Merged::Columns(units, bound) => self.columns(units, bound),
            Merged::Attention(units, rounded) => self.attention_launch(units, rounded),
            Merged::Finish(kernel) => self.finish_product(kernel),
        }
    }

    /// Launches the kernel of rows.
    fn row_group(&mut self, group: &RowGroup, kernel: &RowKernel) -> Result<(), GraphError> {
        let program = self.program;
        let bound = &kernel.bound;
        let root = program.fusion.units[group.units[0]].roots[0];
        let ty = &program.graph.nodes[root].ty;
        let id = self.kernel(&bound.kernel);
        let elements = (self.extent.rows * group.rows.count * group.rows.inner) as u64;
        let most = if group.rows.are_staged() { MOST_IN_FOURS } else { MOST_IN_FOURS / 4 };
        for rows in self.row_ranges_within(ty, root, &bound.stores, (elements, most))? {
            let n = rows.len() * group.rows.count;
            let (grid, width) = self.grid(n.div_ceil(kernel.rows) * WORKGROUP as usize, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            let params = ReduceParams { n: n as u32, width, chunks: 1, row: rows.start as u32, zero: 0 };
            self.launch(id, bindings, params.words(&bound.starts), grid, root)?;
            let elements = n * group.rows.inner;
            let count = |id: NodeId| self.count_in(&program.graph.nodes[id].ty, &rows).min(elements) as u64;
            let touched = group.reads.iter().chain(&group.stored);
            let bytes = touched.map(|&id| self.element_bytes(id) * count(id)).sum();
            let flops = group.units.iter().map(|&at| {
                let (unit, flops) = (&program.fusion.units[at], program.work[at].flops);
                match unit.kind {
                    UnitKind::Reduce => (flops + 1) * elements as u64,
                    _ => flops * count(unit.roots[0]),
                }
            });
            let flops = flops.sum();
            self.works(WorkKind::Reduce, flops, bytes);
        }
        Ok(())
    }

    /// Returns the chunks that each invocation of a kernel of sums over samples goes over.
    fn column_chunks(&self, unit: usize) -> usize {
        let chunks = self.reduce_chunks(self.program.fusion.units[unit].roots[0]);
        (chunks.next_power_of_two() / 4).max(1)
    }

    /// Launches the kernel of sums over samples.
    fn columns(&mut self, units: &[usize], bound: &Bound) -> Result<(), GraphError> {
        let program = self.program;
        let root = program.fusion.units[units[0]].roots[0];
        let ty = &program.graph.nodes[root].ty;
        let id = self.kernel(&bound.kernel);
        let chunks = self.column_chunks(units[0]);
        for rows in self.row_ranges(ty, root, &bound.stores)? {
            let n = self.count_in(ty, &rows);
            let (grid, width) = self.grid(n, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            let (n, row) = (n as u32, rows.start as u32);
            let params = ReduceParams { n, width, chunks: chunks as u32, row, zero: 0 };
            self.launch(id, bindings, params.words(&bound.starts), grid, root)?;
            let roots = units.iter().flat_map(|&at| &program.fusion.units[at].roots);
            self.alone.extend(roots.filter(|root| program.alone.contains(root)));
            let elements = self.reduced_elements(root, &rows);
            let mut reads: Vec<NodeId> =
                units.iter().flat_map(|&at| program.work[at].reads.keys().copied()).collect();
            reads.sort_unstable();
            reads.dedup();
            let count = |&id: &NodeId| self.count_in(&program.graph.nodes[id].ty, &rows).min(elements) as u64;
            let bytes: u64 = reads.iter().map(|id| self.element_bytes(*id) * count(id)).sum();
            let flops: u64 = units.iter().map(|&at| (program.work[at].flops + 1) * elements as u64).sum();
            self.works(WorkKind::Reduce, flops, bytes + 4 * u64::from(n) * units.len() as u64);
        }
        Ok(())
    }

    /// Launches a product with the map behind it.
    fn finish_product(&mut self, kernel: &'a FinishKernel) -> Result<(), GraphError> {
        let program = self.program;
        let finish = &kernel.finish;
        let UnitKernels::Product { operands, .. } = &program.kernels[finish.product] else { return Ok(()) };
        self.unit_work = &kernel.work;
        let before = self.segments[self.segment].steps.len();
        self.product(&finish.unit, program.finish_epilogue(kernel), operands.each_ref().map(Option::as_ref))?;
        let second = finish.again.iter().map(|&id| (id, self.segment, before));
        self.again.extend(second);
        let others = finish.unit.roots[1..].iter();
        let all = 0..self.extent.rows;
        let written = others.map(|&root| {
            self.element_bytes(root) * self.count_in(&program.graph.nodes[root].ty, &all) as u64
        });
        let written: u64 = written.sum();
        // Where the rows take several launches, the last one has it all.
        let own = self.segments[self.segment].steps[before..].iter_mut().rev();
        for step in own.take(1) {
            if let Step::Launch { work, .. } = step {
                work.bytes += written;
            }
        }
        Ok(())
    }
}
