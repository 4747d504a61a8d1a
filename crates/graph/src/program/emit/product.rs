//! Matrix products: which kernel, over which sizes. Nothing here shows in a result's bits.

mod kernel;

use unisono_shaders::{Params, ProductParams, STARTS};

use self::kernel::{Family, Outcome, Side, family, fours, kernel};
use super::{Destination, Emitter, Part, Source};
use crate::codegen::{Binding, Epilogue, ImplicitOperand};
use crate::fuse::{Place, Store, Unit, in_order};
use crate::ops::MatMul;
use crate::trace::{GraphError, Lowering, NodeId, ReduceKind};
use crate::values::tree::PRODUCT_CHUNK;
use crate::values::{Lead, Type};

impl Emitter<'_> {
    pub(super) fn product(
        &mut self,
        unit: &Unit,
        epilogue: Option<&Epilogue>,
        implicit: [Option<&ImplicitOperand>; 2],
    ) -> Result<(), GraphError> {
        let program = self.program;
        let graph = &program.graph;
        let root = unit.roots[0];
        let product = unit.product.unwrap_or(root);
        let node = &graph.nodes[product];
        let [a, b] = [node.inputs[0], node.inputs[1]];
        let (ta, tb) = (&graph.nodes[a].ty, &graph.nodes[b].ty);
        let shape = match program.fusion.lowering[product] {
            Lowering::MatMul { transpose_a, transpose_b, rounds } => {
                Shape { rounds, ..Shape::matmul(ta, tb, &node.ty, MatMul { transpose_a, transpose_b }) }
            }
            _ => Shape::contract(ta, &node.ty, self.run.sizes.iter().max().copied().unwrap_or(0)),
        };
        let place = |id| program.stores.place(in_order(graph, &program.fusion, id));
        let operand = |side: usize| {
            let (id, ty) = [(a, ta), (b, tb)][side];
            let place = place(id);
            let binding = implicit[side].map_or_else(|| binding(place, ty), |found| found.store.clone());
            Operand { place, binding, implicit: implicit[side] }
        };
        let operands = Operands { root, a: operand(0), b: operand(1), shape, epilogue };
        match place(root) {
            Place { store: Store::Joined(bucket), inside, .. } => self.joined(&operands, bucket, inside),
            place => self.each(&operands, place),
        }
    }

    /// The products one by one, each to its own part of a place.
    fn each(&mut self, operands: &Operands<'_>, to: Place) -> Result<(), GraphError> {
        let Operands { root, a, b, shape, epilogue } = operands;
        let ty = &self.program.graph.nodes[*root].ty;
        let chunks = shape.chunks();
        let mut stores = vec![a.binding.clone(), b.binding.clone(), binding(to, ty)];
        stores.extend(epilogue.iter().flat_map(|epilogue| epilogue.stores.clone()));
        let all = || Ok(std::iter::once(0..self.extent.rows).collect());
        let pieces = if shape.contract { all() } else { self.row_ranges(ty, *root, &stores) }?;
        for rows in pieces {
            let lead = match ty.lead {
                Lead::Global => 1,
                Lead::Shard => self.extent.shards,
                Lead::Sample => rows.len(),
            };
            let [m, n, batch] = match shape.all {
                All::Rows => [shape.m * lead, shape.n, 1],
                All::Columns => [shape.m, shape.n * lead, 1],
                All::Apart => [shape.m, shape.n, shape.batch * lead],
            };
            let elements = batch * m * n;
            let mut bindings = self.bind(&stores, &rows);
            let c = if chunks > 1 {
                self.grow(Store::Temp(*root), 4 * (chunks * elements) as u64);
                bindings[2] = self.all(Store::Temp(*root));
                Layers { offset: 0, batch: m * n, chunk: elements, ..Layers::new(m, n, batch * chunks) }
            } else {
                let batch_stride = to.row(m * n);
                Layers { offset: to.inside, batch: batch_stride, ..Layers::new(m, n, batch) }
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
            let both = [&operands.a, &operands.b].map(|operand| operand.binding.clone());
            let mut bindings = self.bind(&both, &(0..self.extent.rows));
            let offset = if groups > 1 {
                self.grow(Store::Temp(root), 4 * (groups * count) as u64);
                bindings.push(self.all(Store::Temp(root)));
                0
            } else {
                bindings.push(self.all(store));
                at * len + inside
            };
            let shards = Some(Shards { first, end, join });
            let c = Layers { offset, batch: count, shards, ..Layers::new(shape.m, shape.n, groups) };
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
        let Operands { root, a, b, shape, epilogue } = operands;
        let Layers { m, n, layers, .. } = *c;
        if shape.contract {
            bindings.push(self.all(Store::ShardStarts));
        }
        let (chunks, products) = match c.shards {
            Some(shards) => (1, layers * shards.join),
            None => (shape.chunks(), layers / shape.chunks()),
        };
        let family = family(self.target, [m, n, shape.longest], products);
        let a_row = if shape.transpose_a { m } else { shape.k };
        let b_row = if shape.transpose_b { shape.k } else { n };
        let [a_step, b_step] = [(a, a_row), (b, b_row)].map(|(operand, row)| operand.place.row(row));
        let sides = [(a, a_row, a_step, shape.a_batch), (b, b_row, b_step, shape.b_batch)];
        let sides = sides.map(|(operand, row, step, batch)| match operand.implicit {
            Some(implicit) => Side::Implicit(implicit),
            None => Side::Stored {
                quads: fours(&[row, step, operand.place.inside, batch]),
                half: self.program.stores.is_half(operand.place.store),
            },
        });
        let to = self.program.stores.place(*root).store;
        let result = Outcome {
            quads: fours(&[n, c.offset, c.batch, c.chunk]),
            half: shape.rounds && self.program.stores.is_half(to),
        };
        let kernel = self.kernel(&kernel(family, shape, sides, result, c.shards.is_some(), *epilogue));
        let ([x, y], columns, width) = match family {
            Family::Registers { rows, columns } => {
                let across = n.div_ceil(4 * columns);
                let (grid, width) = self.grid(m.div_ceil(4 * rows) * across, *root)?;
                ([grid[0], grid[1]], across, width)
            }
            Family::Lanes(lanes) => ([n.div_ceil(4 * lanes) as u32, m.div_ceil(4 * lanes) as u32], 0, 0),
            Family::Tiles => ([n.div_ceil(64) as u32, m.div_ceil(64) as u32], 0, 0),
        };
        let shards = c.shards.unwrap_or_default();
        let most = self.target.max_workgroups as usize;
        for first in (0..layers).step_by(most) {
            let params = ProductParams {
                m: m as u32,
                n: n as u32,
                k: shape.k as u32,
                chunks: chunks as u32,
                a_offset: a.first() as u32,
                a_batch: a.batch(shape.a_batch) as u32,
                b_offset: b.first() as u32,
                b_batch: b.batch(shape.b_batch) as u32,
                c_offset: c.offset as u32,
                c_batch: c.batch as u32,
                c_chunk: c.chunk as u32,
                rows_a_sample: shape.rows_a_sample as u32,
                first_z: first as u32,
                columns: columns as u32,
                width,
                first_shard: shards.first as u32,
                end_shard: shards.end as u32,
                join: shards.join as u32,
                a_step: a_step as u32,
                b_step: b_step as u32,
            };
            let grid = [x, y, most.min(layers - first) as u32];
            let mut starts = epilogue.map_or_else(Vec::new, |epilogue| epilogue.starts.clone());
            starts.resize(STARTS, 0);
            self.launch(kernel, bindings.clone(), params.words(&starts), grid, *root)?;
        }
        Ok(())
    }
}

/// Shards that one layer of the grid adds in registers, at most: as the kernels' loops.
const JOIN: usize = 8;

/// What a product multiplies, what becomes of it, and the value that is stored.
struct Operands<'a> {
    root: NodeId,
    a: Operand<'a>,
    b: Operand<'a>,
    shape: Shape,
    epilogue: Option<&'a Epilogue>,
}

/// A matrix that is stored at a place, or one that is a view of what is bound.
struct Operand<'a> {
    place: Place,
    binding: Binding,
    implicit: Option<&'a ImplicitOperand>,
}

impl Operand<'_> {
    /// The first matrix's place; a view's is counted from 0.
    fn first(&self) -> usize {
        if self.implicit.is_some() { 0 } else { self.place.inside }
    }

    /// From one matrix to the next.
    fn batch(&self, stored: usize) -> usize {
        if self.implicit.is_some() { 1 } else { stored }
    }
}

/// The layers of a product's grid, and where their results go.
#[derive(Clone, Copy)]
struct Layers {
    /// Rows and columns of a result.
    m: usize,
    n: usize,
    layers: usize,
    offset: usize,
    /// From one result to the next, and from one chunk to the next.
    batch: usize,
    chunk: usize,
    shards: Option<Shards>,
}

impl Layers {
    fn new(m: usize, n: usize, layers: usize) -> Self {
        Self { m, n, layers, offset: 0, batch: 0, chunk: 0, shards: None }
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
    /// Rows and columns of the result, for each entry of the lead where it has all of them.
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
    /// What one product has of all samples.
    all: All,
    contract: bool,
    rows_a_sample: usize,
    transpose_a: bool,
    transpose_b: bool,
    /// To what f16 holds.
    rounds: bool,
}

/// What one product has of all samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum All {
    Rows,
    Columns,
    /// Nothing: a sample has products of its own.
    Apart,
}

impl Shape {
    /// Pieces of the inner range whose sums a tree adds.
    fn chunks(&self) -> usize {
        self.longest.div_ceil(PRODUCT_CHUNK).max(1)
    }

    fn matmul(a: &Type, b: &Type, y: &Type, product: MatMul) -> Self {
        let n = y.dims[y.dims.len() - 1];
        let k = product.inner(a);
        let all = match product.across(a, b) {
            Some(_) => All::Columns,
            None if MatMul::is_rows(a, b) => All::Rows,
            None => All::Apart,
        };
        let rows = all == All::Rows;
        let m = if rows { y.count() / n.max(1) } else { y.dims[y.dims.len() - 2] };
        let batch = if rows { 1 } else { y.dims[..y.dims.len() - 2].iter().product() };
        let of = |is_one: bool, count: usize| if is_one { 0 } else { count };
        Self {
            m,
            n,
            k,
            longest: k,
            batch,
            a_batch: of(all != All::Apart || MatMul::is_columns(a, b), m * k),
            b_batch: of(all != All::Apart, k * n),
            all,
            contract: false,
            rows_a_sample: 0,
            transpose_a: product.transpose_a,
            transpose_b: product.transpose_b,
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
            all: All::Apart,
            contract: true,
            rows_a_sample,
            transpose_a: true,
            transpose_b: false,
            rounds: false,
        }
    }
}
