//! What each launch computes: its kind, its floating-point operations and its bytes. Nothing that a plan does
//! depends on it.

use std::ops::Range;

use super::emitter::{Emitter, Part, Step};
use super::product::Span;
use crate::plan::{Work, WorkKind};
use crate::trace::NodeId;
use crate::values::Lead;

impl Emitter<'_> {
    /// Says what the launch that was added last computes.
    pub(super) fn works(&mut self, kind: WorkKind, flops: u64, bytes: u64) {
        if let Some(Step::Launch { work, .. }) = self.segments[self.segment].steps.last_mut() {
            *work = Work { kind, flops, bytes };
        }
    }

    /// Says that the last launch computed attention with so many floating-point operations, and touched so
    /// many bytes.
    pub(super) fn attends(&mut self, flops: u64, bytes: u64) {
        self.works(WorkKind::Attention, flops, bytes);
    }

    /// Says that the last launch computed `elements` of each of a map's values, for these rows.
    pub(super) fn mapped(&mut self, roots: &[NodeId], elements: usize, rows: &Range<usize>) {
        let Work { kind, flops, bytes } = self.map_work(roots, elements, rows);
        self.works(kind, flops, bytes);
    }

    /// Returns the work of the unit's map on `elements` of each of its values.
    pub(super) fn map_work(&self, roots: &[NodeId], elements: usize, rows: &Range<usize>) -> Work {
        let unit = self.unit_work;
        let stored: u64 = roots.iter().map(|&root| self.element_bytes(root) * elements as u64).sum();
        let bytes = stored + self.read_bytes(elements, rows);
        Work { kind: unit.kind, flops: unit.flops * elements as u64, bytes }
    }

    /// Says that the last launch reduced `elements` to `results`, which take so many bytes each.
    pub(super) fn reduced(&mut self, elements: usize, results: (usize, u64), rows: &Range<usize>) {
        let bytes = results.0 as u64 * results.1 + self.read_bytes(elements, rows);
        self.works(WorkKind::Reduce, (self.unit_work.flops + 1) * elements as u64, bytes);
    }

    /// Says that the last launch computed `part` of the products of a kernel.
    pub(super) fn multiplied(&mut self, span: &Span, bindings: &[Part], part: (usize, usize)) {
        let unit = self.unit_work;
        let share = |all: u64| (u128::from(all) * part.0 as u128 / part.1.max(1) as u128) as u64;
        let results = span.m as u64 * span.n as u64;
        let flops = 2 * results * span.inner + unit.flops * results * span.results;
        let operand = |side: usize, elements: u64| {
            bindings[side]
                .bytes
                .min(elements * self.program.stores.element_bytes(bindings[side].store) as u64)
        };
        let of = |side: usize| if span.shared[side] { span.longest } else { span.inner };
        let result = self.program.stores.element_bytes(bindings[2].store) as u64 * results * span.results;
        let behind = self.read_bytes((results * span.results) as usize, &(0..self.extent.rows));
        let bytes = operand(0, span.m as u64 * of(0)) + operand(1, span.n as u64 * of(1)) + result + behind;
        self.works(WorkKind::Product, share(flops), share(bytes));
    }

    /// Returns the bytes that a kernel reads which computes so many elements: each value once, and of each at
    /// most an element for one that is computed.
    fn read_bytes(&self, elements: usize, rows: &Range<usize>) -> u64 {
        let of = |&id: &NodeId| {
            let count = self.count_in(&self.program.graph.nodes[id].ty, rows).min(elements);
            self.element_bytes(id) * count as u64
        };
        self.unit_work.reads.keys().map(of).sum()
    }

    pub(super) fn element_bytes(&self, id: NodeId) -> u64 {
        self.program.stores.element_bytes(self.program.stores.place(id).store) as u64
    }

    /// Returns the number of elements that a reduction reads.
    pub(super) fn reduced_elements(&self, root: NodeId, rows: &Range<usize>) -> usize {
        let graph = &self.program.graph;
        let from = &graph.nodes[graph.nodes[root].inputs[0]].ty;
        if from.lead == Lead::Sample { rows.len() * from.count() } else { self.extent.count(from) }
    }
}
