//! The state of planning: the steps of each segment so far, and the size and lifetime of each memory.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::pack_launches::Kept;
use super::pointwise::MOST_IN_ONES;
use super::product::RightOperands;
use crate::codegen::{Binding, WORKGROUP};
use crate::fuse::{Extent, Store};
use crate::passes::halves;
use crate::plan::{Kernel, Target, Work, WorkKind, Workgroup};
use crate::program::work::UnitWork;
use crate::program::{Program, Run, Slot};
use crate::trace::{GraphError, NodeId};
use crate::values::{Lead, Type};

/// What is computed before the first unit.
static NOTHING: UnitWork = UnitWork { kind: WorkKind::Map, flops: 0, reads: BTreeMap::new() };

/// A plan that is being made. Each module of `emit` adds its own kind of launches.
pub(super) struct Emitter<'a> {
    pub program: &'a Program,
    pub run: &'a Run,
    pub target: &'a Target,
    /// The sizes of the run.
    pub extent: Extent,
    /// Whether the device decides whether the step commits.
    pub decides: bool,
    /// The number of the segment that is being emitted.
    pub segment: usize,
    /// What the kernel of the unit at hand computes.
    pub unit_work: &'a UnitWork,
    /// The elements that launches keep to from now on in memories that hold several values.
    pub kept: Kept,
    /// The time by which lifetimes are counted. Every step takes one tick, and so do the uploads of a
    /// segment.
    clock: usize,
    pub segments: Vec<Steps>,
    pub kernels: Vec<Kernel>,
    /// What a workgroup of each kernel takes, where that is known.
    workgroups: Vec<Option<Workgroup>>,
    /// The index of each kernel in `kernels`. It is looked up in, never iterated.
    known: HashMap<Kernel, usize>,
    /// The buckets of each cut.
    pub buckets_of: BTreeMap<usize, Vec<usize>>,
    /// The outputs that are ready at the end of each segment.
    pub outputs_of: BTreeMap<usize, Vec<usize>>,
    /// The products of each bucket whose shards are apart until the bucket is summed.
    pub apart: BTreeMap<usize, Vec<Apart>>,
    /// The sums over samples of each shard that a kernel has put into a memory of their own.
    pub alone: BTreeSet<NodeId>,
    /// The values that are computed a second time, each with the segment and the number of the step from
    /// which on the second one is used.
    pub again: Vec<(NodeId, usize, usize)>,
    /// The right operands of the segment's products.
    pub right_operands: RightOperands,
    /// For each node whether f16 holds its values, if the target has a matrix unit.
    halves: Vec<bool>,
    /// The constants of each table.
    pub tables: Vec<Vec<u32>>,
    /// The bytes of each memory.
    pub sizes: BTreeMap<Store, u64>,
    /// The first and the last time at which each memory is used.
    pub lives: BTreeMap<Store, (usize, usize)>,
}

/// A product in a bucket whose shards are apart until the bucket is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// The first element in the bucket.
    pub first: usize,
    /// The number of elements.
    pub count: usize,
    /// The number of shards that are added up already in each part.
    pub join: usize,
}

/// A range of a memory, before memories have buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub store: Store,
    pub offset: u64,
    pub bytes: u64,
}

/// A command, before memories have buffers.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Launch {
        kernel: usize,
        bindings: Vec<Part>,
        params: Vec<u32>,
        grid: [u32; 3],
        work: Work,
        /// The elements that the launch keeps to in memories that hold several values. Of a memory that is
        /// not among these it may use any element.
        kept: Kept,
    },
    Copy {
        from: Part,
        to: Part,
    },
    Clear(Part),
}

/// A segment, before memories have buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    pub uploads: Vec<(Slot, Part)>,
    pub steps: Vec<Step>,
    pub downloads: Vec<(Slot, Part)>,
}

impl<'a> Emitter<'a> {
    pub fn new(program: &'a Program, run: &'a Run, target: &'a Target) -> Self {
        let mut buckets_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, bucket) in program.buckets().iter().enumerate() {
            buckets_of.entry(bucket.cut).or_default().push(index);
        }
        let mut outputs_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, output) in program.outputs().iter().enumerate() {
            outputs_of.entry(output.segment).or_default().push(index);
        }
        Self {
            program,
            run,
            target,
            extent: run.extent(),
            decides: run.is_whole() && !run.sizes.is_empty() && program.conditions().is_some(),
            segment: 0,
            unit_work: &NOTHING,
            kept: vec![],
            clock: 0,
            segments: vec![Steps::default(); program.segments()],
            kernels: vec![],
            workgroups: vec![],
            known: HashMap::new(),
            buckets_of,
            outputs_of,
            apart: BTreeMap::new(),
            alone: BTreeSet::new(),
            again: vec![],
            right_operands: RightOperands::default(),
            halves: target.unit.map(|_| halves(&program.graph)).unwrap_or_default(),
            tables: vec![],
            sizes: BTreeMap::new(),
            lives: BTreeMap::new(),
        }
    }

    /// Returns whether f16 holds the values of all these nodes, on a target with a matrix unit.
    pub fn are_halves(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().all(|&node| self.halves.get(node).copied().unwrap_or(false))
    }
}

/// Steps, kernels and transfers.
impl Emitter<'_> {
    /// Returns the index of a kernel in the plan. Adds the kernel if the plan has none like it.
    pub fn kernel(&mut self, kernel: &Kernel) -> usize {
        let mut wgsl = Cow::Borrowed(&*kernel.wgsl);
        if self.target.own_quotients {
            wgsl = unisono_shaders::with_own_quotients(&kernel.wgsl);
        }
        if self.target.masks {
            wgsl = unisono_shaders::with_masks(&wgsl).into();
        }
        match wgsl {
            Cow::Borrowed(_) => self.distinct(kernel),
            Cow::Owned(wgsl) => {
                let Kernel { name, bindings, .. } = kernel;
                self.distinct(&Kernel { name: name.clone(), wgsl, bindings: bindings.clone() })
            }
        }
    }

    /// Returns the index of a kernel as it is.
    pub fn distinct(&mut self, kernel: &Kernel) -> usize {
        if let Some(&index) = self.known.get(kernel) {
            return index;
        }
        self.kernels.push(kernel.clone());
        self.workgroups.push(kernel.workgroup());
        self.known.insert(kernel.clone(), self.kernels.len() - 1);
        self.kernels.len() - 1
    }

    /// Adds a launch that computes node `root`.
    ///
    /// # Errors
    /// [`GraphError::Kernel`], [`GraphError::Limit`] or [`GraphError::Grid`] if the kernel, a binding or the
    /// grid exceeds what the device allows.
    pub fn launch(
        &mut self,
        kernel: usize,
        bindings: Vec<Part>,
        params: Vec<u32>,
        grid: [u32; 3],
        root: NodeId,
    ) -> Result<(), GraphError> {
        self.check_kernel(kernel, root)?;
        if let Some(part) = bindings.iter().find(|p| p.bytes > self.target.max_binding_bytes) {
            return Err(self.limit(root, part.bytes));
        }
        let widest = grid.into_iter().max().unwrap_or_default();
        if widest > self.target.max_workgroups {
            return Err(self.no_grid(root, widest.into()));
        }
        bindings.iter().for_each(|p| self.touch(p.store));
        let bytes = bindings.iter().map(|part| part.bytes).sum();
        let work = Work { kind: self.unit_work.kind, flops: 0, bytes };
        let kept = self.kept.clone();
        self.step(Step::Launch { kernel, bindings, params, grid, work, kept });
        Ok(())
    }

    /// Adds a step to the segment.
    pub fn step(&mut self, step: Step) {
        self.segments[self.segment].steps.push(step);
        self.tick();
    }

    /// Adds an upload of a whole memory to the segment.
    pub fn upload(&mut self, slot: Slot, store: Store) {
        let part = self.all(store);
        self.segments[self.segment].uploads.push((slot, part));
    }

    /// Moves the clock on, so that what was used before may be overwritten from now on.
    pub fn tick(&mut self) {
        self.clock += 1;
    }
}

/// Memories: their parts, sizes and lifetimes.
impl Emitter<'_> {
    /// Starts the clock again. No memory is in use.
    pub fn restart(&mut self) {
        self.clock = 0;
        self.lives.clear();
    }

    /// Notes that a memory is used now.
    pub fn touch(&mut self, store: Store) {
        let clock = self.clock;
        let life = self.lives.entry(store).or_insert((clock, clock));
        life.1 = clock;
    }

    /// Returns the memory of a right operand that is packed now.
    pub fn new_packed(&self, operand: NodeId) -> Store {
        Store::Packed(operand, self.clock)
    }

    /// Returns whether a memory was used in one of the last `steps` steps.
    pub fn is_recent(&self, store: Store, steps: usize) -> bool {
        self.lives.get(&store).is_some_and(|&(_, last)| self.clock - last <= steps)
    }

    /// Returns a part of a memory, which becomes large enough for it and is used now.
    pub fn part(&mut self, store: Store, offset: u64, bytes: u64) -> Part {
        self.touch(store);
        let all = self.size(store);
        self.sizes.insert(store, all.max(offset + bytes));
        Part { store, offset, bytes }
    }

    /// Returns a whole memory, which is used now.
    pub fn all(&mut self, store: Store) -> Part {
        let bytes = self.size(store);
        self.part(store, 0, bytes)
    }

    /// Returns a table of constants, which is used now. The same constants are in one table.
    pub fn table(&mut self, words: Vec<u32>) -> Part {
        let known = self.tables.iter().position(|table| *table == words);
        let index = known.unwrap_or(self.tables.len());
        if known.is_none() {
            self.tables.push(words);
        }
        self.all(Store::Table(index))
    }

    /// Makes a memory at least so many bytes large.
    pub fn grow(&mut self, store: Store, bytes: u64) {
        let size = self.sizes.entry(store).or_insert(0);
        *size = bytes.max(*size);
    }

    /// Returns the bytes that a memory needs. For temporary memories they are those that it has.
    fn size(&self, store: Store) -> u64 {
        let program = self.program;
        let count = |ty: &Type| self.extent.count(ty);
        let elements = match store {
            Store::Scalars => program.stores.scalars.len(),
            Store::Input(i) => count(&program.graph.inputs[i].ty),
            Store::Resident(number) => program.resident(number).map_or(0, |ty| count(&ty)),
            Store::State(buffer) => program.stores.states.buffers[buffer] as usize / 4,
            Store::Value(id) | Store::Again(id) | Store::Apart(id) => count(&program.graph.nodes[id].ty),
            Store::Temp(_) | Store::Temp2(_) | Store::Packed(..) | Store::Joined(_) | Store::ApartOf(_) => {
                return self.sizes.get(&store).copied().unwrap_or(4);
            }
            Store::Partial(b) => {
                self.extent.shards * (program.buckets()[b].len - program.buckets()[b].joined)
            }
            Store::Blocks(b) => self.extent.blocks * program.buckets()[b].len,
            Store::Sums(b) => program.buckets()[b].len,
            Store::Flags => return self.sizes.get(&store).copied().unwrap_or(4),
            Store::Commit | Store::StateFlag | Store::Chained => 1,
            Store::ShardStarts => self.extent.shards + 1,
            Store::Table(index) => self.tables[index].len(),
        };
        whole_words(elements.max(1) * program.stores.element_bytes(store))
    }

    /// Returns the parts of memories that a launch for these rows binds.
    pub fn bind(&mut self, stores: &[Binding], rows: &Range<usize>) -> Vec<Part> {
        let mut part = |b: &Binding| match b.row {
            Some(row) => {
                let row = row * self.program.stores.element_bytes(b.store);
                self.part(b.store, (rows.start * row) as u64, whole_words(rows.len() * row))
            }
            None => self.all(b.store),
        };
        stores.iter().map(&mut part).collect()
    }
}

/// Sizes of launches within the limits of the device.
impl Emitter<'_> {
    /// Divides the rows of a value into ranges for which every binding fits. If all rows fit, there is one
    /// range.
    pub fn row_ranges(
        &self,
        ty: &Type,
        root: NodeId,
        stores: &[Binding],
    ) -> Result<Vec<Range<usize>>, GraphError> {
        self.row_ranges_of(ty, root, stores, u64::MAX)
    }

    /// Divides rows as [`Emitter::row_ranges`] does, into ranges of no more than so many rows.
    pub fn row_ranges_of(
        &self,
        ty: &Type,
        root: NodeId,
        stores: &[Binding],
        most: u64,
    ) -> Result<Vec<Range<usize>>, GraphError> {
        let rows = self.extent.rows;
        let bytes = |b: &Binding| Some(b.row? * self.program.stores.element_bytes(b.store));
        let widest = stores.iter().filter_map(bytes).max().unwrap_or(0).max(4);
        let most = most.min(self.target.max_binding_bytes / widest as u64);
        if ty.lead != Lead::Sample || rows as u64 <= most {
            return Ok(std::iter::once(0..rows).collect());
        }
        // So many rows that each binding starts at a multiple of what the device asks for.
        let unit = self.target.binding_alignment.max(4) as usize;
        let aligned = |bytes: usize| unit >> bytes.trailing_zeros().min(unit.ilog2());
        let alignment = stores.iter().filter_map(bytes).map(aligned).max().unwrap_or(1);
        let step = most as usize / alignment * alignment;
        if step == 0 {
            return Err(self.limit(root, (rows * widest) as u64));
        }
        Ok((0..rows).step_by(step).map(|first| first..rows.min(first + step)).collect())
    }

    /// Divides rows as [`Emitter::row_ranges`] does, into ranges of which a kernel goes over no more than so
    /// many elements, given those of all rows. They need not be in memory, so that no binding limits them.
    pub fn row_ranges_within(
        &self,
        ty: &Type,
        root: NodeId,
        stores: &[Binding],
        (elements, most): (u64, u64),
    ) -> Result<Vec<Range<usize>>, GraphError> {
        let is_one = ty.lead != Lead::Sample;
        let row = if is_one { elements } else { elements.div_ceil(self.extent.rows.max(1) as u64) };
        let most = if row <= MOST_IN_ONES { most.min(MOST_IN_ONES) } else { most };
        match most / row.max(1) {
            0 => {
                let what = self.program.graph.describe(root);
                Err(GraphError::Elements { what, elements: row, most })
            }
            rows => self.row_ranges_of(ty, root, stores, rows),
        }
    }

    /// Returns the number of values of a type in a range of rows. If the type has no value for each sample,
    /// the range does not matter.
    pub fn count_in(&self, ty: &Type, rows: &Range<usize>) -> usize {
        if ty.lead == Lead::Sample { rows.len() * ty.count() } else { self.extent.count(ty) }
    }

    /// Returns the workgroups for `n` invocations, and the number of invocations in a row of the grid.
    pub fn grid(&self, n: usize, root: NodeId) -> Result<([u32; 3], u32), GraphError> {
        let groups = (n as u64).div_ceil(u64::from(WORKGROUP)).max(1);
        let most = u64::from(self.target.max_workgroups);
        let x = groups.min(most);
        let y = groups.div_ceil(x);
        if y > most {
            return Err(self.no_grid(root, y));
        }
        Ok(([x as u32, y as u32, 1], x as u32 * WORKGROUP))
    }

    /// Returns the error for a node of which a kernel would read or write so many bytes.
    pub fn limit(&self, root: NodeId, needs: u64) -> GraphError {
        let graph = &self.program.graph;
        let of_samples = graph.nodes[root].ty.lead == Lead::Sample;
        GraphError::Limit {
            what: graph.describe(root),
            needs,
            adapter_allows: self.target.max_binding_bytes,
            of_samples,
        }
    }

    /// Checks that the device can run a kernel that computes node `root`.
    fn check_kernel(&self, kernel: usize, root: NodeId) -> Result<(), GraphError> {
        let (target, own) = (self.target, &self.kernels[kernel]);
        let Workgroup { invocations, bytes } = self.workgroups[kernel].unwrap_or_default();
        for (limit, needs, adapter_allows) in [
            ("storage buffers", own.bindings.len() as u64, target.storage_buffers),
            ("invocations a workgroup", invocations, target.max_invocations),
            ("bytes of workgroup memory", bytes, target.max_workgroup_bytes),
        ] {
            if needs > adapter_allows.into() {
                let what = format!("{}: kernel {}", self.program.graph.describe(root), own.name);
                return Err(GraphError::Kernel { what, needs, limit, adapter_allows: adapter_allows.into() });
            }
        }
        Ok(())
    }

    /// Returns the error for a node whose launch would have so many workgroups along an axis.
    fn no_grid(&self, root: NodeId, needs: u64) -> GraphError {
        let adapter_allows = self.target.max_workgroups.into();
        GraphError::Grid { what: self.program.graph.describe(root), needs, adapter_allows }
    }
}

/// Returns the bytes of the words that hold so many bytes: an odd number of f16 ends inside of a word.
fn whole_words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}
