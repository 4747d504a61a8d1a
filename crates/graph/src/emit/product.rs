//! Matrix products: which kernel, over which sizes. Nothing here shows in a result's bits.

use unisono_shaders::{module, snippets};

use super::{Destination, Emitter, Part, Source};
use crate::codegen::Binding;
use crate::error::GraphError;
use crate::graph::NodeId;
use crate::op::{Lowering, ReduceKind};
use crate::ops::MatMul;
use crate::plan::{Access, Kernel};
use crate::store::{Place, Store, in_order};
use crate::target::{Machine, Target};
use crate::tree::PRODUCT_CHUNK;
use crate::types::{Lead, Type};

impl Emitter<'_> {
    pub(super) fn product(&mut self, root: NodeId) -> Result<(), GraphError> {
        let program = self.program;
        let graph = &program.graph;
        let node = &graph.nodes[root];
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let (ta, tb) = (&graph.nodes[a].ty, &graph.nodes[b].ty);
        let shape = match program.fusion.lowering[root] {
            Lowering::MatMul { transpose_a, transpose_b, rounds } => {
                Shape { rounds, ..Shape::matmul(ta, tb, &node.ty, transpose_a, transpose_b) }
            }
            _ => Shape::contract(ta, &node.ty, self.run.sizes.iter().max().copied().unwrap_or(0)),
        };
        let place = |id| program.stores.place(in_order(graph, &program.fusion, id));
        let operands = Operands { root, a: (place(a), ta), b: (place(b), tb), shape };
        match place(root) {
            Place { store: Store::Joined(bucket), inside, .. } => self.joined(&operands, bucket, inside),
            place => self.each(&operands, place),
        }
    }

    /// The products one by one, each to its own part of a place.
    fn each(&mut self, operands: &Operands<'_>, to: Place) -> Result<(), GraphError> {
        let Operands { root, a: (pa, ta), b: (pb, tb), shape } = operands;
        let ty = &self.program.graph.nodes[*root].ty;
        let chunks = shape.chunks();
        let stores = [(*pa, *ta), (*pb, *tb), (to, ty)].map(|(place, ty)| binding(place, ty));
        let all = || Ok(std::iter::once(0..self.extent.rows).collect());
        let pieces = if shape.contract { all() } else { self.pieces(ty, *root, &stores) }?;
        for rows in pieces {
            let lead = match ty.lead {
                Lead::Global => 1,
                Lead::Shard => self.extent.shards,
                Lead::Sample => rows.len(),
            };
            let (m, batch) = if shape.rows { (shape.m * lead, 1) } else { (shape.m, shape.batch * lead) };
            let elements = batch * m * shape.n;
            let mut bindings = self.bind(&stores, &rows);
            let c = if chunks > 1 {
                self.grow(Store::Temp(*root), 4 * (chunks * elements) as u64);
                bindings[2] = self.all(Store::Temp(*root));
                Layers { offset: 0, batch: m * shape.n, chunk: elements, ..Layers::new(m, batch * chunks) }
            } else {
                let batch_stride = to.lead_stride.unwrap_or(m * shape.n);
                Layers { offset: to.inside, batch: batch_stride, ..Layers::new(m, batch) }
            };
            self.layers(operands, bindings, &c)?;
            if chunks > 1 {
                let to = Destination::of(to, ty, &rows);
                let from = Source { store: Store::Temp(*root), first: 0, stride: elements, leaves: chunks };
                self.tree(from, elements, &to, ReduceKind::Sum, *root)?;
            }
        }
        Ok(())
    }

    /// A product over samples, summed over the shards of each block: in registers up to [`JOIN`] shards.
    fn joined(&mut self, operands: &Operands<'_>, bucket: usize, inside: usize) -> Result<(), GraphError> {
        let (root, shape) = (operands.root, &operands.shape);
        let (len, count) = (self.program.buckets()[bucket].len, shape.m * shape.n);
        let apart = shape.chunks() > 1;
        if apart {
            self.each(operands, Place { store: Store::Apart(root), inside: 0, lead_stride: None })?;
        }
        let store = if self.run.is_whole() { Store::Sums(bucket) } else { Store::Blocks(bucket) };
        for (at, block) in self.run.blocks().into_iter().enumerate() {
            let (first, end) = (block.start - self.run.first, block.end - self.run.first);
            let to = Destination::vector(store, at * len + inside, count);
            if apart {
                let from = Source {
                    store: Store::Apart(root),
                    first: first * count,
                    stride: count,
                    leaves: end - first,
                };
                self.tree(from, count, &to, ReduceKind::Sum, root)?;
                continue;
            }
            let join = block.len().next_power_of_two().min(JOIN);
            let groups = block.len().div_ceil(join);
            let [a, b] = [operands.a, operands.b].map(|(place, ty)| binding(place, ty));
            let mut bindings = self.bind(&[a, b], &(0..self.extent.rows));
            let offset = if groups > 1 {
                self.grow(Store::Temp(root), 4 * (groups * count) as u64);
                bindings.push(self.all(Store::Temp(root)));
                0
            } else {
                bindings.push(self.all(store));
                at * len + inside
            };
            let shards = Some(Shards { first, end, join });
            let c = Layers { offset, batch: count, shards, ..Layers::new(shape.m, groups) };
            self.layers(operands, bindings, &c)?;
            if groups > 1 {
                let from = Source { store: Store::Temp(root), first: 0, stride: count, leaves: groups };
                self.tree(from, count, &to, ReduceKind::Sum, root)?;
            }
        }
        Ok(())
    }

    /// Launches of one kernel for all layers.
    fn layers(
        &mut self,
        operands: &Operands<'_>,
        mut bindings: Vec<Part>,
        c: &Layers,
    ) -> Result<(), GraphError> {
        let Operands { root, a: (pa, _), b: (pb, _), shape } = operands;
        let Layers { m, layers, .. } = *c;
        if shape.contract {
            bindings.push(self.all(Store::Segments));
        }
        let (chunks, products) = match c.shards {
            Some(shards) => (1, layers * shards.join),
            None => (shape.chunks(), layers / shape.chunks()),
        };
        let family = family(self.target, [m, shape.n, shape.longest], products);
        let quads = Quads {
            a: fours(&[if shape.transpose_a { m } else { shape.k }, pa.inside, shape.a_batch]),
            b: fours(&[if shape.transpose_b { shape.k } else { shape.n }, pb.inside, shape.b_batch]),
            c: fours(&[shape.n, c.offset, c.batch, c.chunk]),
        };
        let is_half = |store| self.program.stores.is_half(store);
        let to = self.program.stores.place(*root).store;
        let halves = F16 { a: is_half(pa.store), b: is_half(pb.store), c: shape.rounds && is_half(to) };
        let kernel = self.kernel(&kernel(family, shape, quads, halves, c.shards.is_some()));
        let ([x, y], columns, width) = match family {
            Family::Registers { rows, columns } => {
                let across = shape.n.div_ceil(4 * columns);
                let (grid, width) = self.grid(m.div_ceil(4 * rows) * across, *root)?;
                ([grid[0], grid[1]], across, width)
            }
            Family::Lanes(lanes) => {
                ([shape.n.div_ceil(4 * lanes) as u32, m.div_ceil(4 * lanes) as u32], 0, 0)
            }
            Family::Tiles => ([shape.n.div_ceil(64) as u32, m.div_ceil(64) as u32], 0, 0),
        };
        let shards = c.shards.unwrap_or_default();
        let most = self.target.max_workgroups as usize;
        for first in (0..layers).step_by(most) {
            let params = [
                m,
                shape.n,
                shape.k,
                chunks,
                pa.inside,
                shape.a_batch,
                pb.inside,
                shape.b_batch,
                c.offset,
                c.batch,
                c.chunk,
                shape.rows_a_sample,
                first,
                columns,
                width as usize,
                shards.first,
                shards.end,
                shards.join,
            ];
            let grid = [x, y, most.min(layers - first) as u32];
            self.launch(kernel, bindings.clone(), params.map(|p| p as u32).to_vec(), grid, *root)?;
        }
        Ok(())
    }
}

/// Shards that one layer of the grid adds in registers, at most: as the kernels' loops.
const JOIN: usize = 8;

/// What a product multiplies.
struct Operands<'a> {
    root: NodeId,
    a: (Place, &'a Type),
    b: (Place, &'a Type),
    shape: Shape,
}

/// The layers of a product's grid, and where their results go.
#[derive(Clone, Copy)]
struct Layers {
    /// Rows of a result.
    m: usize,
    layers: usize,
    offset: usize,
    /// From one result to the next, and from one chunk to the next.
    batch: usize,
    chunk: usize,
    shards: Option<Shards>,
}

impl Layers {
    fn new(m: usize, layers: usize) -> Self {
        Self { m, layers, offset: 0, batch: 0, chunk: 0, shards: None }
    }
}

/// Shards of the run that are summed, `join` of them in each layer.
#[derive(Clone, Copy, Default)]
struct Shards {
    first: usize,
    end: usize,
    join: usize,
}

fn binding(place: Place, ty: &Type) -> Binding {
    Binding { store: place.store, row: (ty.lead == Lead::Sample).then(|| ty.count()) }
}

/// Which file of `shaders` computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// `matmul.wgsl`, with tiles of so many times four rows and columns.
    Registers { rows: usize, columns: usize },
    /// `matmul_lanes.wgsl`, with subgroups of so many lanes.
    Lanes(usize),
    /// `matmul_tiles.wgsl`.
    Tiles,
}

/// The family for `batch` products of `[m, k] x [k, n]`, by sizes and machine alone.
///
/// Measured on lavapipe (Mesa 22.3.6, one core of a Xeon), `[128, 784] x [784, 512]` with the weight stored transposed:
///
/// | kernel | GFLOP/s | compile |
/// |---|---|---|
/// | registers, 4 x 4 | 4.8 | 0.09 s |
/// | registers, 8 x 8 | 8.0 | 0.2 s |
/// | registers, 16 x 16 | 13.4 | 0.6 s |
/// | lanes, 32 x 32 a subgroup of 8 | 20 | 0.3 s |
/// | tiles in workgroup memory | 3.3 | 0.25 s |
///
/// Lanes beat 8 x 8 registers from 16 rows on. Small products take the small kernel, which compiles fastest and wastes
/// least at the edges: below 2^21 steps a larger one would save less than 1 ms. A GPU hides what memory costs behind many
/// invocations, which a tile of 64 x 64 has too few of where a side is shorter than half of it.
fn family(target: &Target, [m, n, k]: [usize; 3], batch: usize) -> Family {
    const FEW_STEPS: usize = 1 << 21;
    let small = Family::Registers { rows: 1, columns: 1 };
    match target.machine {
        Machine::Cpu if m < 8 || n < 8 || m * n * k * batch < FEW_STEPS => small,
        Machine::Cpu => match target.subgroup {
            lanes @ (4 | 8 | 16) => Family::Lanes(lanes as usize),
            _ => Family::Registers { rows: 2, columns: 2 },
        },
        Machine::Gpu if m < 32 || n < 32 => small,
        Machine::Gpu => Family::Tiles,
    }
}

/// Whether operands are read and written four elements at a time.
#[derive(Clone, Copy)]
struct Quads {
    a: bool,
    b: bool,
    c: bool,
}

/// Whether operands and result are stored as f16.
#[derive(Clone, Copy)]
struct F16 {
    a: bool,
    b: bool,
    c: bool,
}

fn fours(sizes: &[usize]) -> bool {
    sizes.iter().all(|s| s.is_multiple_of(4))
}

/// Sizes of a product.
struct Shape {
    /// Rows of the result, for each entry of the lead where `rows`.
    m: usize,
    n: usize,
    /// Inner size; 0 where it differs from shard to shard.
    k: usize,
    /// The longest inner range.
    longest: usize,
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
    /// To what f16 holds.
    rounds: bool,
}

impl Shape {
    /// Pieces of the inner range whose sums a tree adds.
    fn chunks(&self) -> usize {
        self.longest.div_ceil(PRODUCT_CHUNK).max(1)
    }

    fn matmul(a: &Type, b: &Type, y: &Type, transpose_a: bool, transpose_b: bool) -> Self {
        let n = y.dims[y.dims.len() - 1];
        let inner =
            |dims: &[usize], first: bool| if first { dims[dims.len() - 2] } else { dims[dims.len() - 1] };
        let k = inner(&a.dims, transpose_a && a.dims.len() > 1);
        let rows = MatMul::is_rows(a, b);
        let m = if rows { y.count() / n.max(1) } else { y.dims[y.dims.len() - 2] };
        let batch = if rows { 1 } else { y.dims[..y.dims.len() - 2].iter().product() };
        let (a_batch, b_batch) = if rows { (0, 0) } else { (m * k, k * n) };
        let (contract, rows_a_sample) = (false, 0);
        Self {
            m,
            n,
            k,
            longest: k,
            batch,
            a_batch,
            b_batch,
            rows,
            contract,
            rows_a_sample,
            transpose_a,
            transpose_b,
            rounds: false,
        }
    }

    fn contract(a: &Type, y: &Type, longest_shard: usize) -> Self {
        let (m, n) = (y.dims[0], y.dims[1]);
        let rows_a_sample = a.count() / m.max(1);
        Self {
            m,
            n,
            k: 0,
            longest: longest_shard * rows_a_sample,
            batch: 1,
            a_batch: 0,
            b_batch: 0,
            rows: false,
            contract: true,
            rows_a_sample,
            transpose_a: true,
            transpose_b: false,
            rounds: false,
        }
    }
}

/// A family's file with what it leaves open.
fn kernel(family: Family, shape: &Shape, quads: Quads, halves: F16, join: bool) -> Kernel {
    use snippets::*;
    let mut shared = vec![
        SUM_QUADS,
        [[A_WORDS, A_QUADS], [A_HALF_WORDS, A_HALF_QUADS]][usize::from(halves.a)][usize::from(quads.a)],
        [[B_WORDS, B_QUADS], [B_HALF_WORDS, B_HALF_QUADS]][usize::from(halves.b)][usize::from(quads.b)],
        [[C_WORDS, C_QUADS], [C_HALF_WORDS, C_HALF_QUADS]][usize::from(shape.rounds)][usize::from(quads.c)],
        if shape.contract { INNER_SHARD } else { INNER_ALL },
        PRODUCT,
    ];
    if shape.rounds {
        shared.push(ROUND_HALF);
    }
    let (sizes, file) = match family {
        Family::Registers { rows, columns } => (
            format!("const ROWS: u32 = {rows}u;\nconst COLUMNS: u32 = {columns}u;\n"),
            unisono_shaders::MATMUL,
        ),
        Family::Lanes(lanes) => (format!("const LANES: u32 = {lanes}u;\n"), unisono_shaders::MATMUL_LANES),
        Family::Tiles => (String::new(), unisono_shaders::MATMUL_TILES),
    };
    let kept = match (shape.rounds, halves.c) {
        (false, _) => "",
        (true, false) => "alias Kept = f32;\n",
        (true, true) => "alias Kept = f16;\n",
    };
    let constants = format!(
        "const CHUNK: u32 = {PRODUCT_CHUNK}u;\nconst TRANSPOSE_A: bool = {};\nconst TRANSPOSE_B: bool = {};\n\
         const RAGGED: bool = {};\nconst JOIN: bool = {join};\n{sizes}{kept}",
        shape.transpose_a,
        shape.transpose_b,
        shape.contract || !shape.k.is_multiple_of(4),
    );
    let enable = if halves.a || halves.b || halves.c { "enable f16;\n" } else { "" };
    let mut bindings = vec![Access::Read, Access::Read, Access::ReadWrite];
    if shape.contract {
        bindings.push(Access::Read);
    }
    let name = match (shape.contract, shape.transpose_a, shape.transpose_b) {
        (true, ..) => (if join { "contract_shards" } else { "contract" }).to_string(),
        (_, a, b) => {
            let half = if shape.rounds { "_half" } else { "" };
            format!("matmul_{}{}{half}", if a { "t" } else { "n" }, if b { "t" } else { "n" })
        }
    };
    Kernel { name, wgsl: format!("{enable}{}", module(&shared, &constants, file)), bindings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_follows_machine_and_sizes_alone() {
        let target = |machine, subgroup| Target { machine, subgroup, ..Target::default() };
        let small = Family::Registers { rows: 1, columns: 1 };
        let lavapipe = target(Machine::Cpu, 8);
        assert_eq!(family(&lavapipe, [128, 512, 784], 1), Family::Lanes(8));
        assert_eq!(family(&lavapipe, [512, 784, 16], 8), Family::Lanes(8));
        assert_eq!(family(&lavapipe, [128, 10, 512], 1), small);
        assert_eq!(family(&lavapipe, [1, 4096, 4096], 1), small);
        let llvmpipe_gl = target(Machine::Cpu, 0);
        assert_eq!(family(&llvmpipe_gl, [128, 512, 784], 1), Family::Registers { rows: 2, columns: 2 });
        let gpu = target(Machine::Gpu, 32);
        assert_eq!(family(&gpu, [128, 512, 784], 1), Family::Tiles);
        assert_eq!(family(&gpu, [128, 10, 512], 1), small);
    }
}
