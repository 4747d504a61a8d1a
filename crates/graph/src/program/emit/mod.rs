//! From a program and a run to a plan: sizes, launches, transfers and memory.

mod memory;
mod product;
mod sums;

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::{MapParams, Params, ReduceParams};

use crate::codegen::{Binding, Bound, WORKGROUP};
use crate::fuse::{Extent, Store, Unit, in_order};
use crate::plan::{Kernel, Plan, Target};
use crate::program::{Program, Run, Slot, UnitKernels};
use crate::trace::{GraphError, NodeId, ReduceKind};
use crate::values::tree::SUM_CHUNK;
use crate::values::{Lead, Type};

use sums::{Destination, Source};

/// The number of rows of which each part of a divided launch is a multiple; it is twice that number where a
/// binding may be f16. So bindings start at aligned offsets.
const ROW_ALIGNMENT: usize = 64;

/// Returns the bytes of the words that hold so many bytes: an odd number of f16 ends inside of a word.
fn whole_words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

impl Program {
    /// Returns the plan for a run of shards on a device.
    ///
    /// # Errors
    /// [`GraphError::Limit`] if a value does not fit the device, [`GraphError::NoF16`] if values are stored
    /// as f16 and the device does not have it.
    pub fn plan(&self, run: &Run, target: &Target) -> Result<Plan, GraphError> {
        if let Some(&id) = self.stores.halves.first().filter(|_| !target.f16) {
            return Err(GraphError::NoF16 { what: self.graph.describe(id) });
        }
        plan(self, run, target)
    }
}

/// Returns the plan for a run of shards.
fn plan(program: &Program, run: &Run, target: &Target) -> Result<Plan, GraphError> {
    let mut emitter = Emitter {
        program,
        run,
        target,
        extent: run.extent(),
        segment: 0,
        clock: 0,
        segments: vec![Steps::default(); program.segments()],
        kernels: vec![],
        sizes: BTreeMap::new(),
        lives: BTreeMap::new(),
    };
    for segment in 0..program.segments() {
        emitter.emit_segment(segment)?;
    }
    emitter.finish()
}

/// A range of a memory, before memories have buffers.
#[derive(Clone, Copy, Debug)]
struct Part {
    store: Store,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Launch { kernel: usize, bindings: Vec<Part>, params: Vec<u32>, grid: [u32; 3] },
    Copy { from: Part, to: Part },
    Clear(Part),
}

#[derive(Clone, Debug, Default)]
struct Steps {
    uploads: Vec<(Slot, Part)>,
    steps: Vec<Step>,
    downloads: Vec<(Slot, Part)>,
}

struct Emitter<'a> {
    program: &'a Program,
    run: &'a Run,
    target: &'a Target,
    extent: Extent,
    segment: usize,
    clock: usize,
    segments: Vec<Steps>,
    kernels: Vec<Kernel>,
    sizes: BTreeMap<Store, u64>,
    lives: BTreeMap<Store, (usize, usize)>,
}

impl Emitter<'_> {
    fn emit_segment(&mut self, segment: usize) -> Result<(), GraphError> {
        self.segment = segment;
        self.upload_sums();
        if segment == 0 {
            self.upload_inputs();
        }
        self.clock += 1;
        let open = self.open_buckets(segment);
        let cut: Vec<usize> = open.keys().copied().collect();
        self.compute(open)?;
        if self.run.is_whole() && !cut.is_empty() {
            self.check_finite(segment, &cut)?;
        }
        if segment + 1 == self.program.segments() {
            self.replace_states();
        }
        self.clock += 1;
        self.download_outputs();
        Ok(())
    }

    /// Uploads the sums of the cut before this segment, where other devices had a part in them.
    fn upload_sums(&mut self) {
        if self.run.is_whole() {
            return;
        }
        let (program, segment) = (self.program, self.segment);
        for (bucket, _) in program.buckets().iter().enumerate().filter(|(_, b)| b.cut + 1 == segment) {
            let part = self.all(Store::Sums(bucket));
            self.transfer_up(Slot::Sums(bucket), part);
        }
    }

    /// Launches the segment's units, and sums each bucket as soon as all of it is there, so that it can leave
    /// while the rest is computed. `open` holds for each bucket the values that are still to come.
    fn compute(&mut self, mut open: BTreeMap<usize, BTreeSet<NodeId>>) -> Result<(), GraphError> {
        let (program, segment) = (self.program, self.segment);
        let units = program.fusion.units.iter().zip(&program.kernels);
        for (unit, kernels) in units.filter(|(u, _)| u.segment == segment) {
            if self.is_absent(&program.graph.nodes[unit.roots[0]].ty) {
                continue;
            }
            self.launch_unit(unit, kernels)?;
            for sources in open.values_mut() {
                sources.retain(|source| !unit.roots.contains(source));
            }
            let full: Vec<usize> =
                open.iter().filter(|(_, sources)| sources.is_empty()).map(|(&bucket, _)| bucket).collect();
            for bucket in full {
                open.remove(&bucket);
                self.sum_bucket(segment, bucket)?;
            }
        }
        open.into_keys().try_for_each(|bucket| self.sum_bucket(segment, bucket))
    }

    fn launch_unit(&mut self, unit: &Unit, kernels: &UnitKernels) -> Result<(), GraphError> {
        match kernels {
            UnitKernels::Map { pairs: Some(bound), .. } if self.target.pairs => self.map(unit, bound),
            UnitKernels::Map { plain, .. } => self.map(unit, plain),
            UnitKernels::Reduce { whole, chunked, kind } => self.reduce(unit.roots[0], whole, chunked, *kind),
            UnitKernels::Product { epilogue, operands } => {
                self.product(unit, epilogue.as_ref(), operands.each_ref().map(Option::as_ref))
            }
        }
    }

    /// Downloads the outputs that are there at the end of the segment.
    fn download_outputs(&mut self) {
        let (program, segment) = (self.program, self.segment);
        // Downloads are read when all of the segment is done: until then nothing else may take their memory.
        let downloads: Vec<Store> =
            self.segments[segment].downloads.iter().map(|(_, part)| part.store).collect();
        downloads.into_iter().for_each(|store| self.touch(store));
        for (index, output) in program.outputs().iter().enumerate().filter(|(_, o)| o.segment == segment) {
            let id = program.graph.outputs[index].node;
            let place = program.stores.place(in_order(&program.graph, &program.fusion, id));
            if output.sum.is_some() && !self.run.is_whole() || self.is_absent(&output.ty) {
                continue;
            }
            let bytes = 4 * self.extent.count(&output.ty) as u64;
            let part = self.part(place.store, 4 * place.inside as u64, bytes);
            self.segments[segment].downloads.push((Slot::Output(index), part));
        }
    }

    /// Returns whether a run without shards, which is that of an idle replica, has nothing of a value.
    fn is_absent(&self, ty: &Type) -> bool {
        self.run.sizes.is_empty() && ty.lead != Lead::Global
    }

    /// Uploads the inputs that some kernel or output uses.
    fn upload_inputs(&mut self) {
        let program = self.program;
        let mut used: Vec<Store> = Vec::new();
        let loads = program.fusion.units.iter().flat_map(|u| u.roots.iter());
        let reads = loads
            .flat_map(|&r| program.fusion.reads(&program.graph, r).into_keys())
            .chain(program.graph.roots());
        for id in reads {
            let store = program.stores.place(in_order(&program.graph, &program.fusion, id)).store;
            if matches!(store, Store::Scalars | Store::Input(_)) && !used.contains(&store) {
                used.push(store);
            }
        }
        used.sort_unstable();
        for store in used {
            let slot = if let Store::Input(i) = store { Slot::Input(i) } else { Slot::Scalars };
            if matches!(store, Store::Input(i) if self.is_absent(&program.graph.inputs[i].ty)) {
                continue;
            }
            let part = self.all(store);
            self.transfer_up(slot, part);
        }
    }

    fn transfer_up(&mut self, slot: Slot, part: Part) {
        let part = self.part(part.store, part.offset, part.bytes);
        self.segments[self.segment].uploads.push((slot, part));
    }

    fn map(&mut self, unit: &Unit, bound: &Bound) -> Result<(), GraphError> {
        let ty = &self.program.graph.nodes[unit.roots[0]].ty;
        let kernel = self.kernel(&bound.kernel);
        for rows in self.row_ranges(ty, unit.roots[0], &bound.stores)? {
            let n = if ty.lead == Lead::Sample { rows.len() * ty.count() } else { self.extent.count(ty) };
            let invocations = n / bound.lanes;
            let (grid, width) = self.grid(invocations, unit.roots[0])?;
            let bindings = self.bind(&bound.stores, &rows);
            let params = MapParams { n: invocations as u32, width, row: rows.start as u32, zero: 0 };
            self.launch(kernel, bindings, params.words(&bound.starts), grid, unit.roots[0])?;
        }
        Ok(())
    }

    fn reduce(
        &mut self,
        root: NodeId,
        whole: &Bound,
        chunked: &Bound,
        kind: ReduceKind,
    ) -> Result<(), GraphError> {
        let graph = &self.program.graph;
        let (ty, from) = (&graph.nodes[root].ty, &graph.nodes[graph.nodes[root].inputs[0]].ty);
        let samples = ty.lead == Lead::Shard && from.lead == Lead::Sample;
        let inner = from.count() / ty.count().max(1);
        let longest = self.run.sizes.iter().max().copied().unwrap_or(0);
        let chunks = if samples { longest * inner } else { inner }.div_ceil(SUM_CHUNK).max(1);
        let bound = if chunks == 1 { whole } else { chunked };
        let kernel = self.kernel(&bound.kernel);
        for rows in self.row_ranges(ty, root, &bound.stores)? {
            let n = if ty.lead == Lead::Sample { rows.len() * ty.count() } else { self.extent.count(ty) };
            if chunks > 1 {
                self.grow(Store::Temp(root), 4 * (chunks * n) as u64);
            }
            let (grid, width) = self.grid(n * chunks, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            let params =
                ReduceParams { n: n as u32, width, chunks: chunks as u32, row: rows.start as u32, zero: 0 };
            self.launch(kernel, bindings, params.words(&bound.starts), grid, root)?;
            if chunks > 1 {
                let to = Destination::of(self.program.stores.place(root), ty, &rows);
                let from = Source { store: Store::Temp(root), first: 0, stride: n, leaves: chunks };
                self.tree(from, n, &to, kind, root)?;
            }
        }
        Ok(())
    }

    /// Copies new values that are not in the place of their state yet.
    fn replace_states(&mut self) {
        let program = self.program;
        for (&state, &value) in &program.graph.updates {
            let place = program.stores.place(in_order(&program.graph, &program.fusion, value));
            if place.store == Store::State(state) {
                continue;
            }
            let bytes = 4 * program.graph.states[state].ty.count() as u64;
            let from = self.part(place.store, 4 * place.inside as u64, bytes);
            let to = self.part(Store::State(state), 0, bytes);
            self.step(Step::Copy { from, to });
        }
    }

    /// Returns ranges of rows such that every binding fits, and one range where all rows do.
    fn row_ranges(
        &self,
        ty: &Type,
        root: NodeId,
        stores: &[Binding],
    ) -> Result<Vec<std::ops::Range<usize>>, GraphError> {
        let rows = self.extent.rows;
        let bytes = |b: &Binding| Some(b.row? * self.program.stores.element_bytes(b.store));
        let widest = stores.iter().filter_map(bytes).max().unwrap_or(0).max(4);
        let most = self.target.max_binding_bytes / widest as u64;
        if ty.lead != Lead::Sample || rows as u64 <= most {
            return Ok(std::iter::once(0..rows).collect());
        }
        let halves = stores.iter().any(|b| self.program.stores.is_half(b.store));
        let alignment = if halves { 2 * ROW_ALIGNMENT } else { ROW_ALIGNMENT };
        let step = most as usize / alignment * alignment;
        if step == 0 {
            return Err(self.limit(root, (rows * widest) as u64));
        }
        Ok((0..rows).step_by(step).map(|first| first..rows.min(first + step)).collect())
    }

    fn bind(&mut self, stores: &[Binding], rows: &std::ops::Range<usize>) -> Vec<Part> {
        let mut part = |b: &Binding| match b.row {
            Some(row) => {
                let row = row * self.program.stores.element_bytes(b.store);
                self.part(b.store, (rows.start * row) as u64, whole_words(rows.len() * row))
            }
            None => self.all(b.store),
        };
        stores.iter().map(&mut part).collect()
    }

    /// Returns the workgroups for `n` invocations, and the number of invocations in a row of the grid.
    fn grid(&self, n: usize, root: NodeId) -> Result<([u32; 3], u32), GraphError> {
        let groups = (n as u64).div_ceil(u64::from(WORKGROUP)).max(1);
        let most = u64::from(self.target.max_workgroups);
        let x = groups.min(most);
        let y = groups.div_ceil(x);
        if y > most {
            return Err(self.limit(root, n as u64 * 4));
        }
        Ok(([x as u32, y as u32, 1], x as u32 * WORKGROUP))
    }

    fn limit(&self, root: NodeId, needs: u64) -> GraphError {
        let what = self.program.graph.describe(root);
        GraphError::Limit { what, needs, adapter_allows: self.target.max_binding_bytes }
    }

    fn kernel(&mut self, kernel: &Kernel) -> usize {
        self.kernels.iter().position(|k| k == kernel).unwrap_or_else(|| {
            self.kernels.push(kernel.clone());
            self.kernels.len() - 1
        })
    }

    fn launch(
        &mut self,
        kernel: usize,
        bindings: Vec<Part>,
        params: Vec<u32>,
        grid: [u32; 3],
        root: NodeId,
    ) -> Result<(), GraphError> {
        if let Some(part) = bindings.iter().find(|p| p.bytes > self.target.max_binding_bytes) {
            return Err(self.limit(root, part.bytes));
        }
        if grid.iter().any(|&g| g > self.target.max_workgroups) {
            return Err(self.limit(root, u64::from(grid[1]) * u64::from(grid[2]) * 4));
        }
        bindings.iter().for_each(|p| self.touch(p.store));
        self.step(Step::Launch { kernel, bindings, params, grid });
        Ok(())
    }

    fn step(&mut self, step: Step) {
        self.segments[self.segment].steps.push(step);
        self.clock += 1;
    }
}

#[cfg(test)]
mod tests;
