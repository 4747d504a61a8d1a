//! From a program and a run to a plan: sizes, launches, transfers, memory.

use std::collections::BTreeMap;

use unisono_shaders::{module, snippets};

use crate::codegen::{Binding, Bound, WORKGROUP};
use crate::error::GraphError;
use crate::fuse::Unit;
use crate::graph::NodeId;
use crate::memory::{Lifetime, plan_memory};
use crate::op::{Lowering, ReduceKind};
use crate::ops::MatMul;
use crate::plan::{Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer};
use crate::program::{Program, Run, Slot, UnitKernels};
use crate::store::{Extent, Place, Store, in_order};
use crate::target::Target;
use crate::tree::{PRODUCT_CHUNK, SUM_CHUNK};
use crate::types::{Lead, Type};

/// Leaves that one invocation of the tree kernel adds.
const TREE_GROUP: usize = 1024;
/// Rows that a piece of a launch is a multiple of, so that its bindings start at aligned offsets.
const ROW_ALIGNMENT: usize = 64;
/// Elements that one invocation of the finite kernel looks at, as in its file.
const FINITE_SPAN: usize = 64;

/// The sizes of a run.
pub(crate) fn extent(run: &Run) -> Extent {
    Extent { rows: run.rows(), shards: run.sizes.len(), blocks: run.blocks().len() }
}

/// The plan for a run of shards.
pub(crate) fn plan(program: &Program, run: &Run, target: &Target) -> Result<Plan, GraphError> {
    let mut emitter = Emitter {
        program,
        run,
        target,
        extent: extent(run),
        stage: 0,
        clock: 0,
        segments: vec![Steps::default(); program.segments()],
        kernels: vec![],
        sizes: BTreeMap::new(),
        lives: BTreeMap::new(),
    };
    for stage in 0..program.segments() {
        emitter.segment(stage)?;
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
    stage: usize,
    clock: usize,
    segments: Vec<Steps>,
    kernels: Vec<Kernel>,
    sizes: BTreeMap<Store, u64>,
    lives: BTreeMap<Store, (usize, usize)>,
}

impl Emitter<'_> {
    fn segment(&mut self, stage: usize) -> Result<(), GraphError> {
        self.stage = stage;
        let program = self.program;
        if stage > 0 && !self.run.is_whole() {
            for (bucket, _) in program.buckets().iter().enumerate().filter(|(_, b)| b.cut + 1 == stage) {
                let part = self.all(Store::Sums(bucket));
                self.transfer_up(Slot::Sums(bucket), part);
            }
        }
        if stage == 0 {
            self.upload_inputs();
        }
        self.clock += 1;
        for (unit, kernels) in program.fusion.units.iter().zip(&program.kernels).filter(|(u, _)| u.stage == stage) {
            if self.is_absent(&program.graph.nodes[unit.roots[0]].ty) {
                continue;
            }
            match kernels {
                UnitKernels::Map(bound) => self.map(unit, bound)?,
                UnitKernels::Reduce { whole, chunked, kind } => self.reduce(unit.roots[0], whole, chunked, *kind)?,
                UnitKernels::Product => self.product(unit.roots[0])?,
            }
        }
        self.cross_shards(stage)?;
        if stage + 1 == program.segments() {
            self.replace_states();
        }
        self.clock += 1;
        for (index, output) in program.outputs().iter().enumerate().filter(|(_, o)| o.segment == stage) {
            let (_, id) = program.graph.outputs[index];
            let place = program.stores.place(in_order(&program.graph, &program.fusion, id));
            if output.sum.is_some() && !self.run.is_whole() || self.is_absent(&output.ty) {
                continue;
            }
            let bytes = 4 * self.extent.count(&output.ty) as u64;
            let part = self.part(place.store, 4 * place.inside as u64, bytes);
            self.segments[stage].downloads.push((Slot::Output(index), part));
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
        let roots = program.graph.outputs.iter().map(|o| o.1).chain(program.graph.updates.values().copied());
        let loads = program.fusion.units.iter().flat_map(|u| u.roots.iter());
        let reads = loads.flat_map(|&r| program.fusion.reads(&program.graph, r).into_keys()).chain(roots);
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
        self.segments[self.stage].uploads.push((slot, part));
    }

    fn map(&mut self, unit: &Unit, bound: &Bound) -> Result<(), GraphError> {
        let ty = &self.program.graph.nodes[unit.roots[0]].ty;
        let kernel = self.kernel(&bound.kernel);
        for rows in self.pieces(ty, unit.roots[0], &bound.stores)? {
            let n = if ty.lead == Lead::Sample { rows.len() * ty.count() } else { self.extent.count(ty) };
            let (grid, width) = self.grid(n, unit.roots[0])?;
            let bindings = self.bind(&bound.stores, &rows);
            let params = vec![n as u32, width, rows.start as u32, 0];
            self.launch(kernel, bindings, params, grid, unit.roots[0])?;
        }
        Ok(())
    }

    fn reduce(&mut self, root: NodeId, whole: &Bound, chunked: &Bound, kind: ReduceKind) -> Result<(), GraphError> {
        let graph = &self.program.graph;
        let (ty, from) = (&graph.nodes[root].ty, &graph.nodes[graph.nodes[root].inputs[0]].ty);
        let samples = ty.lead == Lead::Shard && from.lead == Lead::Sample;
        let inner = from.count() / ty.count().max(1);
        let longest = self.run.sizes.iter().max().copied().unwrap_or(0);
        let chunks = if samples { longest * inner } else { inner }.div_ceil(SUM_CHUNK).max(1);
        let bound = if chunks == 1 { whole } else { chunked };
        let kernel = self.kernel(&bound.kernel);
        for rows in self.pieces(ty, root, &bound.stores)? {
            let n = if ty.lead == Lead::Sample { rows.len() * ty.count() } else { self.extent.count(ty) };
            if chunks > 1 {
                self.grow(Store::Temp(root), 4 * (chunks * n) as u64);
            }
            let (grid, width) = self.grid(n * chunks, root)?;
            let bindings = self.bind(&bound.stores, &rows);
            self.launch(kernel, bindings, vec![n as u32, width, chunks as u32, rows.start as u32, 0], grid, root)?;
            if chunks > 1 {
                let to = Destination::of(self.program.stores.place(root), ty, &rows);
                self.tree(Source { store: Store::Temp(root), first: 0, stride: n, leaves: chunks }, n, &to, kind, root)?;
            }
        }
        Ok(())
    }

    /// The tree over `leaves` vectors of `elements` each, in as many passes as it takes.
    fn tree(
        &mut self,
        mut from: Source,
        elements: usize,
        to: &Destination,
        kind: ReduceKind,
        root: NodeId,
    ) -> Result<(), GraphError> {
        let constants =
            format!("const GROUP: u32 = {TREE_GROUP}u;\nconst MAXIMUM: bool = {};\n", kind == ReduceKind::Max);
        let kernel = self.kernel(&Kernel {
            name: "tree".into(),
            wgsl: module(&[snippets::SUM], &constants, unisono_shaders::TREE),
            bindings: vec![Access::Read, Access::ReadWrite],
        });
        loop {
            let groups = from.leaves.div_ceil(TREE_GROUP);
            let last = groups == 1;
            let target = if last {
                to.clone()
            } else {
                let store = if from.store == Store::Temp(root) { Store::Temp2(root) } else { Store::Temp(root) };
                self.grow(store, 4 * (groups * elements) as u64);
                Destination { store, offset: 0, lead: 0, inner: elements, part: None }
            };
            let (grid, width) = self.grid(elements * groups, root)?;
            let params = [
                elements,
                from.leaves,
                from.stride,
                from.first,
                target.offset,
                elements,
                target.lead,
                target.inner,
                width as usize,
                groups,
            ];
            let read = self.all(from.store);
            let write = target.part.unwrap_or_else(|| self.all(target.store));
            self.launch(kernel, vec![read, write], params.map(|p| p as u32).to_vec(), grid, root)?;
            if last {
                return Ok(());
            }
            from = Source { store: target.store, first: 0, stride: elements, leaves: groups };
        }
    }

    fn product(&mut self, root: NodeId) -> Result<(), GraphError> {
        let program = self.program;
        let graph = &program.graph;
        let node = &graph.nodes[root];
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let (ta, tb) = (&graph.nodes[a].ty, &graph.nodes[b].ty);
        let shape = match program.fusion.lowering[root] {
            Lowering::MatMul { transpose_a, transpose_b } => Shape::matmul(ta, tb, &node.ty, transpose_a, transpose_b),
            _ => Shape::contract(ta, &node.ty),
        };
        let place = |id| program.stores.place(in_order(graph, &program.fusion, id));
        let (pa, pb, pc) = (place(a), place(b), place(root));
        let chunks = if shape.contract {
            self.run.sizes.iter().max().copied().unwrap_or(0) * shape.rows_a_sample
        } else {
            shape.k
        }
        .div_ceil(PRODUCT_CHUNK)
        .max(1);
        let row = |ty: &Type| (ty.lead == Lead::Sample).then(|| ty.count());
        let binding = |p: Place, ty: &Type| Binding { store: p.store, row: row(ty) };
        let stores = [binding(pa, ta), binding(pb, tb), binding(pc, &node.ty)];
        let kernel = self.kernel(&product_kernel(&shape));
        let pieces = if shape.contract { vec![0..self.extent.rows] } else { self.pieces(&node.ty, root, &stores)? };
        for rows in pieces {
            let lead = match node.ty.lead {
                Lead::Global => 1,
                Lead::Shard => self.extent.shards,
                Lead::Sample => rows.len(),
            };
            let (m, batch) = if shape.rows { (shape.m * lead, 1) } else { (shape.m, shape.batch * lead) };
            let elements = batch * m * shape.n;
            let c_batch = pc.lead_stride.unwrap_or(m * shape.n);
            let mut bindings = self.bind(&stores, &rows);
            let (c_offset, c_batch, c_chunk) = if chunks > 1 {
                self.grow(Store::Temp(root), 4 * (chunks * elements) as u64);
                bindings[2] = self.all(Store::Temp(root));
                (0, m * shape.n, elements)
            } else {
                (pc.inside, c_batch, 0)
            };
            if shape.contract {
                bindings.push(self.all(Store::Segments));
            }
            let params = [
                m,
                shape.n,
                shape.k,
                chunks,
                pa.inside,
                shape.a_batch,
                pb.inside,
                shape.b_batch,
                c_offset,
                c_batch,
                c_chunk,
                shape.rows_a_sample,
            ];
            let grid = [shape.n.div_ceil(32) as u32, m.div_ceil(32) as u32, (batch * chunks) as u32];
            self.launch(kernel, bindings, params.map(|p| p as u32).to_vec(), grid, root)?;
            if chunks > 1 {
                let to = Destination::of(pc, &node.ty, &rows);
                let from = Source { store: Store::Temp(root), first: 0, stride: elements, leaves: chunks };
                self.tree(from, elements, &to, ReduceKind::Sum, root)?;
            }
        }
        Ok(())
    }

    /// Each bucket of this cut, summed over the subtrees of the run; over all of them where the run is the whole batch.
    fn cross_shards(&mut self, stage: usize) -> Result<(), GraphError> {
        let program = self.program;
        let cut: Vec<usize> = (0..program.buckets().len()).filter(|&b| program.buckets()[b].cut == stage).collect();
        if cut.is_empty() {
            return Ok(());
        }
        let whole = self.run.is_whole();
        for &bucket in &cut {
            let (len, root) = (program.buckets()[bucket].len, program.buckets()[bucket].values[0].0);
            for (index, block) in self.run.blocks().into_iter().enumerate() {
                let first = (block.start - self.run.first) * len;
                let from = Source { store: Store::Partial(bucket), first, stride: len, leaves: block.len() };
                let store = if whole { Store::Sums(bucket) } else { Store::Blocks(bucket) };
                let to = Destination { store, offset: index * len, lead: 0, inner: len, part: None };
                self.tree(from, len, &to, ReduceKind::Sum, root)?;
            }
            if !whole && self.extent.blocks > 0 {
                let part = self.all(Store::Blocks(bucket));
                self.segments[stage].downloads.push((Slot::Blocks(bucket), part));
            }
        }
        if whole { self.check_finite(stage, &cut) } else { Ok(()) }
    }

    fn check_finite(&mut self, stage: usize, cut: &[usize]) -> Result<(), GraphError> {
        let flag = self.part(Store::Flag(stage), 0, 4);
        self.step(Step::Clear(flag));
        let kernel = self.kernel(&Kernel {
            name: "finite".into(),
            wgsl: unisono_shaders::FINITE.into(),
            bindings: vec![Access::Read, Access::ReadWrite],
        });
        for &bucket in cut {
            let (len, root) = (self.program.buckets()[bucket].len, self.program.buckets()[bucket].values[0].0);
            let (grid, width) = self.grid(len.div_ceil(FINITE_SPAN), root)?;
            let sums = self.all(Store::Sums(bucket));
            self.launch(kernel, vec![sums, flag], vec![len as u32, width, 0, 0], grid, root)?;
        }
        self.segments[stage].downloads.push((Slot::Flag(stage), flag));
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
    fn pieces(&self, ty: &Type, root: NodeId, stores: &[Binding]) -> Result<Vec<std::ops::Range<usize>>, GraphError> {
        let rows = self.extent.rows;
        let widest = stores.iter().filter_map(|b| b.row).max().unwrap_or(0).max(1);
        let most = self.target.max_binding_bytes / (4 * widest as u64);
        if ty.lead != Lead::Sample || rows as u64 <= most {
            return Ok(std::iter::once(0..rows).collect());
        }
        let step = most as usize / ROW_ALIGNMENT * ROW_ALIGNMENT;
        if step == 0 {
            return Err(self.limit(root, (rows * widest * 4) as u64));
        }
        Ok((0..rows).step_by(step).map(|first| first..rows.min(first + step)).collect())
    }

    fn bind(&mut self, stores: &[Binding], rows: &std::ops::Range<usize>) -> Vec<Part> {
        let mut part = |b: &Binding| match b.row {
            Some(row) => self.part(b.store, (rows.start * row * 4) as u64, (rows.len() * row * 4) as u64),
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
        self.segments[self.stage].steps.push(step);
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
            Store::Temp(_) | Store::Temp2(_) => return self.sizes.get(&store).copied().unwrap_or(4),
            Store::Partial(b) => self.extent.shards * program.buckets()[b].len,
            Store::Blocks(b) => self.extent.blocks * program.buckets()[b].len,
            Store::Sums(b) => program.buckets()[b].len,
            Store::Flag(_) => 1,
            Store::Segments => self.extent.shards + 1,
        };
        4 * elements.max(1) as u64
    }

    /// Gives every store a buffer.
    fn finish(self) -> Result<Plan, GraphError> {
        let scratch: Vec<Store> =
            self.lives.keys().copied().filter(|s| !matches!(s, Store::State(_) | Store::Segments)).collect();
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
                Store::Segments => Role::Table(self.segment_table()),
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
    fn segment_table(&self) -> Vec<u32> {
        let mut at = 0;
        let mut table = vec![0];
        for &size in &self.run.sizes {
            at += size as u32;
            table.push(at);
        }
        table
    }
}

/// Leaves of a tree: vectors at equal distances.
struct Source {
    store: Store,
    first: usize,
    stride: usize,
    leaves: usize,
}

/// Where a tree's result goes.
#[derive(Clone)]
struct Destination {
    store: Store,
    offset: usize,
    /// From one shard's part to the next.
    lead: usize,
    /// Elements of a part.
    inner: usize,
    part: Option<Part>,
}

impl Destination {
    fn of(place: Place, ty: &Type, rows: &std::ops::Range<usize>) -> Self {
        let inner = ty.count().max(1);
        let lead = place.lead_stride.unwrap_or(inner);
        let skip = if ty.lead == Lead::Sample { rows.start * inner } else { 0 };
        Self { store: place.store, offset: place.inside + skip, lead, inner, part: None }
    }
}

/// Sizes of a product.
struct Shape {
    /// Rows of the result, for each entry of the lead where `rows`.
    m: usize,
    n: usize,
    k: usize,
    /// Products for each entry of the lead.
    batch: usize,
    a_batch: usize,
    b_batch: usize,
    /// All rows of all samples in one product.
    rows: bool,
    contract: bool,
    rows_a_sample: usize,
    transpose_a: bool,
    transpose_b: bool,
}

impl Shape {
    fn matmul(a: &Type, b: &Type, y: &Type, transpose_a: bool, transpose_b: bool) -> Self {
        let n = y.dims[y.dims.len() - 1];
        let inner = |dims: &[usize], first: bool| if first { dims[dims.len() - 2] } else { dims[dims.len() - 1] };
        let k = inner(&a.dims, transpose_a && a.dims.len() > 1);
        let rows = MatMul::is_rows(a, b);
        let m = if rows { y.count() / n.max(1) } else { y.dims[y.dims.len() - 2] };
        let batch = if rows { 1 } else { y.dims[..y.dims.len() - 2].iter().product() };
        let (a_batch, b_batch) = if rows { (0, 0) } else { (m * k, k * n) };
        Self { m, n, k, batch, a_batch, b_batch, rows, contract: false, rows_a_sample: 0, transpose_a, transpose_b }
    }

    fn contract(a: &Type, y: &Type) -> Self {
        let (m, n) = (y.dims[0], y.dims[1]);
        Self {
            m,
            n,
            k: 0,
            batch: 1,
            a_batch: 0,
            b_batch: 0,
            rows: false,
            contract: true,
            rows_a_sample: a.count() / m.max(1),
            transpose_a: true,
            transpose_b: false,
        }
    }
}

fn product_kernel(shape: &Shape) -> Kernel {
    let inner = if shape.contract { snippets::INNER_SHARD } else { snippets::INNER_ALL };
    let constants = format!(
        "const CHUNK: u32 = {PRODUCT_CHUNK}u;\nconst TRANSPOSE_A: bool = {};\nconst TRANSPOSE_B: bool = {};\n",
        shape.transpose_a, shape.transpose_b
    );
    let mut bindings = vec![Access::Read, Access::Read, Access::ReadWrite];
    if shape.contract {
        bindings.push(Access::Read);
    }
    let name = match (shape.contract, shape.transpose_a, shape.transpose_b) {
        (true, ..) => "contract".to_string(),
        (_, a, b) => format!("matmul_{}{}", if a { "t" } else { "n" }, if b { "t" } else { "n" }),
    };
    Kernel { name, wgsl: module(&[snippets::SUM, inner], &constants, unisono_shaders::MATMUL), bindings }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::StateKind;
    use crate::plan::Plan;
    use crate::tape::Tape;

    /// A step with everything that has samples: an input, dropout, a product, its gradient, a loss of each sample.
    fn step() -> Program {
        let tape = Tape::new();
        let (x, rate) = (tape.input("x", Type::sample(&[4])), tape.input("rate", Type::global(&[])));
        let w = tape.state("w", &[3, 4], StateKind::Parameter);
        let losses = x.dropout(0.5, "drop").matmul_t(&w).tanh().sum(&[-1]);
        let loss = losses.sum_shards();
        let gradient = &tape.gradients(&loss, std::slice::from_ref(&w))[0];
        tape.update(&w, &(&w - &(gradient * &rate)));
        tape.output("losses", &losses);
        tape.output("loss", &loss);
        tape.output("twice", &(&loss + &loss));
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn slots(transfers: &[Transfer]) -> Vec<Slot> {
        transfers.iter().map(|t| Slot::decode(t.slot)).collect()
    }

    #[test]
    fn an_idle_replica_takes_the_sums_and_commits_and_does_nothing_else() {
        let program = step();
        let idle = Run { first: 0, sizes: vec![], shards: 3 };
        let Plan { segments, buffers, .. } = program.plan(&idle, &Target::default()).unwrap();
        assert_eq!(segments.len(), 2);
        assert_eq!((segments[0].commands.len(), segments[0].downloads.len()), (0, 0));
        assert!(!slots(&segments[0].uploads).contains(&Slot::Input(0)), "{:?}", slots(&segments[0].uploads));
        assert_eq!(slots(&segments[1].uploads), [Slot::Sums(0)]);
        assert_eq!(slots(&segments[1].downloads), [Slot::Output(2)]);
        let busy = program.plan(&Run { first: 0, sizes: vec![2], shards: 3 }, &Target::default()).unwrap();
        assert_eq!(segments[1].commands.len(), busy.segments[1].commands.len());
        assert!(buffers.iter().any(|b| b.role == Role::State(0)));
    }
}
