//! From a program and a run to a plan: sizes, launches, transfers, memory.

mod product;
mod sums;

use std::collections::{BTreeMap, BTreeSet};

use crate::codegen::{Binding, Bound, WORKGROUP};
use crate::fuse::{Extent, Store, Unit, in_order};
use crate::plan::{
    Buffer, Command, Kernel, Launch, Lifetime, Plan, Role, Segment, Slice, Target, Transfer, plan_memory,
};
use crate::program::{Program, Run, Slot, UnitKernels};
use crate::trace::{GraphError, NodeId, ReduceKind};
use crate::values::tree::SUM_CHUNK;
use crate::values::{Lead, Type};

use sums::{Destination, Source};

/// A piece of a launch is a multiple of so many rows, or of twice as many where they may be f16, so that its bindings start at
/// aligned offsets.
const ROW_ALIGNMENT: usize = 64;

/// Bytes that hold at least so many: an odd number of f16 ends inside a word.
fn whole_words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

impl Program {
    /// The plan for a run of shards on a device.
    ///
    /// # Errors
    /// [`GraphError::Limit`] for what does not fit the device; [`GraphError::NoF16`] for a layout that the device does not have.
    pub fn plan(&self, run: &Run, target: &Target) -> Result<Plan, GraphError> {
        if let Some(&id) = self.stores.halves.first().filter(|_| !target.f16) {
            return Err(GraphError::NoF16 { what: self.graph.describe(id) });
        }
        plan(self, run, target)
    }
}

/// The plan for a run of shards.
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

/// A range of a store, before stores have buffers.
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
        let program = self.program;
        if segment > 0 && !self.run.is_whole() {
            for (bucket, _) in program.buckets().iter().enumerate().filter(|(_, b)| b.cut + 1 == segment) {
                let part = self.all(Store::Sums(bucket));
                self.transfer_up(Slot::Sums(bucket), part);
            }
        }
        if segment == 0 {
            self.upload_inputs();
        }
        self.clock += 1;
        let units = program.fusion.units.iter().zip(&program.kernels);
        let mut open = self.open_buckets(segment);
        let cut: Vec<usize> = open.keys().copied().collect();
        for (unit, kernels) in units.filter(|(u, _)| u.segment == segment) {
            if self.is_absent(&program.graph.nodes[unit.roots[0]].ty) {
                continue;
            }
            match kernels {
                UnitKernels::Map { pairs: Some(bound), .. } if self.target.pairs => self.map(unit, bound)?,
                UnitKernels::Map { plain, .. } => self.map(unit, plain)?,
                UnitKernels::Reduce { whole, chunked, kind } => {
                    self.reduce(unit.roots[0], whole, chunked, *kind)?
                }
                UnitKernels::Product { epilogue, operands } => {
                    self.product(unit, epilogue.as_ref(), operands.each_ref().map(Option::as_ref))?
                }
            }
            // A bucket is summed as soon as all of it is there, so that it can leave while the rest is computed.
            for sources in open.values_mut() {
                sources.retain(|source| !unit.roots.contains(source));
            }
            let full = |bucket: &usize| open.get(bucket).is_some_and(BTreeSet::is_empty);
            for bucket in cut.iter().copied().filter(full).collect::<Vec<_>>() {
                open.remove(&bucket);
                self.sum_bucket(segment, bucket)?;
            }
        }
        for bucket in open.into_keys() {
            self.sum_bucket(segment, bucket)?;
        }
        if self.run.is_whole() && !cut.is_empty() {
            self.check_finite(segment, &cut)?;
        }
        if segment + 1 == program.segments() {
            self.replace_states();
        }
        self.clock += 1;
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
        Ok(())
    }

    /// Whether a run without shards, that of an idle replica, has nothing of a value.
    fn is_absent(&self, ty: &Type) -> bool {
        self.run.sizes.is_empty() && ty.lead != Lead::Global
    }

    /// Inputs that some kernel or output uses.
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
            let params = [&[invocations as u32, width, rows.start as u32, 0], &bound.starts[..]].concat();
            self.launch(kernel, bindings, params, grid, unit.roots[0])?;
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
            let params = [n as u32, width, chunks as u32, rows.start as u32, 0];
            let params = [&params, &bound.starts[..]].concat();
            self.launch(kernel, bindings, params, grid, root)?;
            if chunks > 1 {
                let to = Destination::of(self.program.stores.place(root), ty, &rows);
                let from = Source { store: Store::Temp(root), first: 0, stride: n, leaves: chunks };
                self.tree(from, n, &to, kind, root)?;
            }
        }
        Ok(())
    }

    /// New values that are not in their state's place yet.
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

    /// Ranges of rows such that every binding fits: one range where all do.
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

    /// Workgroups for `n` invocations, and the invocations of a row of the grid.
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

    fn touch(&mut self, store: Store) {
        let clock = self.clock;
        let life = self.lives.entry(store).or_insert((clock, clock));
        life.1 = clock;
    }

    fn part(&mut self, store: Store, offset: u64, bytes: u64) -> Part {
        self.touch(store);
        let all = self.size(store);
        self.sizes.insert(store, all.max(offset + bytes));
        Part { store, offset, bytes }
    }

    fn all(&mut self, store: Store) -> Part {
        let bytes = self.size(store);
        self.part(store, 0, bytes)
    }

    fn grow(&mut self, store: Store, bytes: u64) {
        let size = self.sizes.entry(store).or_insert(0);
        *size = bytes.max(*size);
    }

    fn size(&self, store: Store) -> u64 {
        let program = self.program;
        let count = |ty: &Type| self.extent.count(ty);
        let elements = match store {
            Store::Scalars => program.stores.scalars.len(),
            Store::Input(i) => count(&program.graph.inputs[i].ty),
            Store::State(i) => count(&program.graph.states[i].ty),
            Store::Value(id) => count(&program.graph.nodes[id].ty),
            Store::Temp(_) | Store::Temp2(_) | Store::Joined(_) => {
                return self.sizes.get(&store).copied().unwrap_or(4);
            }
            Store::Apart(id) => count(&program.graph.nodes[id].ty),
            Store::Partial(b) => {
                self.extent.shards * (program.buckets()[b].len - program.buckets()[b].joined)
            }
            Store::Blocks(b) => self.extent.blocks * program.buckets()[b].len,
            Store::Sums(b) => program.buckets()[b].len,
            Store::Flag(_) => 1,
            Store::ShardStarts => self.extent.shards + 1,
        };
        whole_words(elements.max(1) * program.stores.element_bytes(store))
    }

    /// Gives every store a buffer.
    fn finish(self) -> Result<Plan, GraphError> {
        let exchanges = self.target.shares_memory && !self.run.is_whole();
        let is_shared = |s: &Store| exchanges && matches!(s, Store::Blocks(_) | Store::Sums(_));
        let is_own = |s: &Store| matches!(s, Store::State(_) | Store::ShardStarts) || is_shared(s);
        let scratch: Vec<Store> = self.lives.keys().copied().filter(|s| !is_own(s)).collect();
        let lifetime = |s: &Store| {
            let (first, last) = self.lives[s];
            Lifetime { bytes: self.sizes[s], first, last }
        };
        let memory = plan_memory(&scratch.iter().map(lifetime).collect::<Vec<_>>());
        let mut buffers: Vec<Buffer> =
            memory.buffer_bytes.iter().map(|&bytes| Buffer { bytes, role: Role::Scratch }).collect();
        let mut buffer_of: BTreeMap<Store, usize> = scratch.into_iter().zip(memory.buffer).collect();
        for &store in self.lives.keys() {
            let role = match store {
                Store::State(i) => Role::State(i),
                Store::ShardStarts => Role::Table(self.shard_starts()),
                store if is_shared(&store) => Role::Shared,
                _ => continue,
            };
            buffers.push(Buffer { bytes: self.sizes[&store], role });
            buffer_of.insert(store, buffers.len() - 1);
        }
        if let Some((store, _)) = self.sizes.iter().find(|(_, b)| **b > self.target.max_buffer_bytes) {
            let root = if let Store::Value(id) | Store::Temp(id) = store { *id } else { 0 };
            return Err(self.limit(root, self.sizes[store]));
        }
        let slice = |p: &Part| Slice { buffer: buffer_of[&p.store], offset: p.offset, bytes: p.bytes };
        let transfer = |(slot, part): &(Slot, Part)| Transfer { slot: slot.code(), slice: slice(part) };
        let command = |step: &Step| match step {
            Step::Launch { kernel, bindings, params, grid } => Command::Launch(Launch {
                kernel: *kernel,
                bindings: bindings.iter().map(slice).collect(),
                params: params.clone(),
                grid: *grid,
            }),
            Step::Copy { from, to } => Command::Copy { from: slice(from), to: slice(to) },
            Step::Clear(part) => Command::Clear(slice(part)),
        };
        let segments = self.segments.iter().map(|s| Segment {
            uploads: s.uploads.iter().map(transfer).collect(),
            commands: s.steps.iter().map(command).collect(),
            downloads: s.downloads.iter().map(transfer).collect(),
        });
        Ok(Plan { kernels: self.kernels, buffers, segments: segments.collect() })
    }

    /// First row of each shard, and the end of the last.
    fn shard_starts(&self) -> Vec<u32> {
        let mut at = 0;
        let mut table = vec![0];
        for &size in &self.run.sizes {
            at += size as u32;
            table.push(at);
        }
        table
    }
}

#[cfg(test)]
mod tests;
