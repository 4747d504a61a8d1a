//! Matrix products: which kernel, over which sizes. Nothing here shows in a result's bits.

mod kernel;

use self::kernel::{F16, Family, Quads, family, fours, kernel};
use super::{Destination, Emitter, Part, Source};
use crate::codegen::{Binding, Finish};
use crate::error::GraphError;
use crate::fuse::Unit;
use crate::graph::NodeId;
use crate::op::{Lowering, ReduceKind};
use crate::ops::MatMul;
use crate::store::{Place, Store, in_order};
use crate::tree::PRODUCT_CHUNK;
use crate::types::{Lead, Type};

impl Emitter<'_> {
    pub(super) fn product(&mut self, unit: &Unit, finish: Option<&Finish>) -> Result<(), GraphError> {
        let program = self.program;
        let graph = &program.graph;
        let root = unit.roots[0];
        let product = unit.product.unwrap_or(root);
        let node = &graph.nodes[product];
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let (ta, tb) = (&graph.nodes[a].ty, &graph.nodes[b].ty);
        let shape = match program.fusion.lowering[product] {
            Lowering::MatMul { transpose_a, transpose_b, rounds } => {
                Shape { rounds, ..Shape::matmul(ta, tb, &node.ty, transpose_a, transpose_b) }
            }
            _ => Shape::contract(ta, &node.ty, self.run.sizes.iter().max().copied().unwrap_or(0)),
        };
        let place = |id| program.stores.place(in_order(graph, &program.fusion, id));
        let operands = Operands { root, a: (place(a), ta), b: (place(b), tb), shape, finish };
        match place(root) {
            Place { store: Store::Joined(bucket), inside, .. } => self.joined(&operands, bucket, inside),
            place => self.each(&operands, place),
        }
    }

    /// The products one by one, each to its own part of a place.
    fn each(&mut self, operands: &Operands<'_>, to: Place) -> Result<(), GraphError> {
        let Operands { root, a: (pa, ta), b: (pb, tb), shape, finish } = operands;
        let ty = &self.program.graph.nodes[*root].ty;
        let chunks = shape.chunks();
        let mut stores = [(*pa, *ta), (*pb, *tb), (to, ty)].map(|(place, ty)| binding(place, ty)).to_vec();
        stores.extend(finish.iter().flat_map(|finish| finish.stores.clone()));
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
                let batch_stride = to.row(m * shape.n);
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
            self.each(operands, Place { store: Store::Apart(root), inside: 0, runs: None })?;
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
        let Operands { root, a: (pa, _), b: (pb, _), shape, finish } = operands;
        let Layers { m, layers, .. } = *c;
        if shape.contract {
            bindings.push(self.all(Store::Segments));
        }
        let (chunks, products) = match c.shards {
            Some(shards) => (1, layers * shards.join),
            None => (shape.chunks(), layers / shape.chunks()),
        };
        let family = family(self.target, [m, shape.n, shape.longest], products);
        let a_row = if shape.transpose_a { m } else { shape.k };
        let b_row = if shape.transpose_b { shape.k } else { shape.n };
        let [a_step, b_step] = [(pa, a_row), (pb, b_row)].map(|(place, row)| place.row(row));
        let quads = Quads {
            a: fours(&[a_row, a_step, pa.inside, shape.a_batch]),
            b: fours(&[b_row, b_step, pb.inside, shape.b_batch]),
            c: fours(&[shape.n, c.offset, c.batch, c.chunk]),
        };
        let is_half = |store| self.program.stores.is_half(store);
        let to = self.program.stores.place(*root).store;
        let halves = F16 { a: is_half(pa.store), b: is_half(pb.store), c: shape.rounds && is_half(to) };
        let kernel = self.kernel(&kernel(family, shape, quads, halves, c.shards.is_some(), *finish));
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
                a_step,
                b_step,
            ];
            let grid = [x, y, most.min(layers - first) as u32];
            self.launch(kernel, bindings.clone(), params.map(|p| p as u32).to_vec(), grid, *root)?;
        }
        Ok(())
    }
}

/// Shards that one layer of the grid adds in registers, at most: as the kernels' loops.
const JOIN: usize = 8;

/// What a product multiplies, what becomes of it, and the value that is stored.
struct Operands<'a> {
    root: NodeId,
    a: (Place, &'a Type),
    b: (Place, &'a Type),
    shape: Shape,
    finish: Option<&'a Finish>,
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
    Binding { store: place.store, row: (ty.lead == Lead::Sample).then(|| place.row(ty.count())) }
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
