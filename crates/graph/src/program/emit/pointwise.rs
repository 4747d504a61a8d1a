//! Launches of pointwise kernels and of reductions.

use unisono_shaders::{MapParams, Params, ReduceParams};

use super::emitter::Emitter;
use super::sums::{Destination, Source};
use crate::codegen::{Bound, ReduceKernels};
use crate::fuse::{Store, Unit};
use crate::trace::{GraphError, Lowering, NodeId};
use crate::values::Lead;
use crate::values::tree::SUM_CHUNK;

/// The most elements that kernels go over which count them in fours, in 32 bits. They also count a little
/// beyond the end of a row.
pub(super) const MOST_IN_FOURS: u64 = (1 << 34) - (1 << 10);

/// The most elements of a launch of several rows. Some indices cannot be divided by four, so they count
/// single elements and wrap at 2^32.
pub(super) const MOST_IN_ONES: u64 = MOST_IN_FOURS / 4;

/// The most elements that kernels make one of which count them one by one, in 32 bits, and the end of the
/// last chunk beside.
const MOST_ONE_BY_ONE: usize = (1 << 32) - SUM_CHUNK;

impl Emitter<'_> {
    /// Launches a pointwise kernel.
    pub(super) fn map(&mut self, unit: &Unit, bound: &Bound) -> Result<(), GraphError> {
        let root = unit.roots[0];
        let ty = &self.program.graph.nodes[root].ty;
        let kernel = self.kernel(&bound.kernel);
        for rows in self.row_ranges(ty, root, &bound.stores)? {
            let invocations = self.count_in(ty, &rows) / bound.lanes;
            let (grid, width) = self.grid(invocations, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            let params = MapParams { n: invocations as u32, width, row: rows.start as u32, zero: 0 };
            self.launch(kernel, bindings, params.words(&bound.starts), grid, root)?;
            self.mapped(&unit.roots, self.count_in(ty, &rows), &rows);
        }
        Ok(())
    }

    /// Launches a reduction: one kernel where the operands are short, otherwise a kernel that reduces chunks
    /// of them and a tree over the chunks.
    pub(super) fn reduce(&mut self, unit: &Unit, kernels: &ReduceKernels) -> Result<(), GraphError> {
        let (program, root) = (self.program, unit.roots[0]);
        let (graph, fusion, stores) = (&program.graph, &program.fusion, &program.stores);
        let Lowering::Reduce(reduction) = &fusion.lowering[root] else { return Ok(()) };
        let (ty, chunks) = (&graph.nodes[root].ty, self.reduce_chunks(root));
        let (bound, in_fours) =
            kernels.for_target(graph, fusion, stores, (unit, reduction), (self.target, chunks > 1));
        let to_one = self.reduced_to_one(root);
        if !in_fours && to_one > MOST_ONE_BY_ONE {
            let what = graph.describe(root);
            return Err(GraphError::Elements { what, elements: to_one as u64, most: MOST_ONE_BY_ONE as u64 });
        }
        // A kernel that does not count in fours counts the elements of one result alone.
        let most = if in_fours { MOST_IN_FOURS } else { u64::MAX };
        let kernel = self.kernel(&bound.kernel);
        let elements = self.reduced_elements(root, &(0..self.extent.rows)) as u64;
        for rows in self.row_ranges_within(ty, root, &bound.stores, (elements, most))? {
            let n = self.count_in(ty, &rows);
            if chunks > 1 {
                self.grow(Store::Temp(root), 4 * (chunks * n) as u64);
            }
            let own = n / bound.lanes;
            let (grid, width) = self.grid(own * chunks, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            let params =
                ReduceParams { n: own as u32, width, chunks: chunks as u32, row: rows.start as u32, zero: 0 };
            self.launch(kernel, bindings, params.words(&bound.starts), grid, root)?;
            self.reduced(self.reduced_elements(root, &rows), (n * chunks, 4), &rows);
            if chunks > 1 {
                let to = Destination::of(stores.place(root), ty, &rows);
                let from = Source { store: Store::Temp(root), first: 0, stride: n, leaves: chunks };
                self.tree(from, n, &to, reduction.kind, root)?;
            }
        }
        Ok(())
    }

    /// Returns the number of chunks into which a reduction divides the elements that it reduces to one.
    pub(super) fn reduce_chunks(&self, root: NodeId) -> usize {
        self.reduced_to_one(root).div_ceil(SUM_CHUNK).max(1)
    }

    /// Returns the number of elements that a reduction reduces to one. If it reduces over the samples of a
    /// shard, the longest shard counts.
    fn reduced_to_one(&self, root: NodeId) -> usize {
        let graph = &self.program.graph;
        let (ty, from) = (&graph.nodes[root].ty, &graph.nodes[graph.nodes[root].inputs[0]].ty);
        let samples = ty.lead == Lead::Shard && from.lead == Lead::Sample;
        let inner = from.count() / ty.count().max(1);
        let longest = self.run.sizes.iter().max().copied().unwrap_or(0);
        if samples { longest.saturating_mul(inner) } else { inner }
    }
}
