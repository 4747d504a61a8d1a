//! Matrix products: which kernel, over which sizes. No choice made here shows in a result's bits.

mod few;
mod folded;
mod kernel;
mod layers;
mod packed;
mod panels;
mod shape;
mod slab;
mod tile;
mod unit;

use self::kernel::{Family, are_fours};
pub(super) use self::layers::Span;
use self::layers::{Layers, Shards};
pub(super) use self::packed::RightOperands;
use self::shape::{All, Shape};
use super::emitter::{Apart, Emitter};
use super::sums::{Destination, Source};
use crate::codegen::{Binding, Epilogue, ImplicitOperand};
use crate::fuse::{Place, Store, Unit, in_order};
use crate::ops::MatMul;
use crate::passes::Runs;
use crate::plan::target::Machine;
use crate::program::FinishKernel;
use crate::trace::{GraphError, Lowering, NodeId, ReduceKind};
use crate::values::{Lead, Type};

/// The most shards whose products one layer of the grid adds in registers. The loops of the kernels have the
/// same bound.
const JOIN: usize = 8;

/// The rows of a shard from which a GPU stores its product apart. Each element of it is then written and read
/// once more, in which time a GPU of today does some 450 multiply-adds with the smallest tiles instead of the
/// largest.
const LONG: usize = 512;

/// The operands of a product, its epilogue, and the value that is stored.
struct Operands<'a> {
    /// The stored value.
    root: NodeId,
    /// The left operand.
    a: Operand<'a>,
    /// The right operand.
    b: Operand<'a>,
    /// The node of the right operand.
    right: NodeId,
    shape: Shape,
    epilogue: Option<&'a Epilogue>,
}

/// A matrix that is stored at a place, or one that is a view of a bound memory (implicit GEMM).
struct Operand<'a> {
    place: Place,
    binding: Binding,
    implicit: Option<&'a ImplicitOperand>,
}

impl Operand<'_> {
    /// Returns the first element of the first matrix. A view counts matrices and elements from 0.
    fn first(&self) -> usize {
        if self.implicit.is_some() { 0 } else { self.place.inside }
    }

    /// Returns the distance from one matrix to the next, which is `stored` elements, or 1 for a view.
    fn batch(&self, stored: usize) -> usize {
        if self.implicit.is_some() { 1 } else { stored }
    }
}

impl Emitter<'_> {
    /// Launches a product with its epilogue.
    pub(super) fn product(
        &mut self,
        unit: &Unit,
        epilogue: Option<&Epilogue>,
        implicit: [Option<&ImplicitOperand>; 2],
    ) -> Result<(), GraphError> {
        let operands = self.operands(unit, epilogue, implicit);
        let root = unit.roots[0];
        match self.program.stores.place(in_order(&self.program.graph, &self.program.fusion, root)) {
            Place { store: Store::Joined(bucket), inside, .. } => self.joined(&operands, bucket, inside),
            place => self.each(&operands, place),
        }
    }

    fn operands<'b>(
        &self,
        unit: &Unit,
        epilogue: Option<&'b Epilogue>,
        implicit: [Option<&'b ImplicitOperand>; 2],
    ) -> Operands<'b> {
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
        let shape = Shape { halves: self.are_halves(&[a, b]), ..shape };
        let place = |id| program.stores.place(in_order(graph, &program.fusion, id));
        let operand = |side: usize| {
            let (id, ty) = [(a, ta), (b, tb)][side];
            let place = place(id);
            let binding = implicit[side].map_or_else(|| binding(place, ty), |found| found.store.clone());
            Operand { place, binding, implicit: implicit[side] }
        };
        Operands { root, a: operand(0), b: operand(1), right: b, shape, epilogue }
    }

    /// Returns whether a product's kernel computes the map behind it: it does if one workgroup computes all
    /// chunks of a tile.
    pub(super) fn is_finished(&self, kernel: &FinishKernel) -> bool {
        let operands = self.operands(&kernel.finish.unit, None, [None, None]);
        operands.shape.chunks() == 1 || self.is_in_turn(&operands, self.program.stores.place(operands.root))
    }

    /// Launches the products one by one. Each goes to its own part of a place.
    fn each(&mut self, operands: &Operands<'_>, to: Place) -> Result<(), GraphError> {
        let Operands { root, a, b, shape, epilogue, .. } = operands;
        let ty = &self.program.graph.nodes[*root].ty;
        let in_turn = self.is_in_turn(operands, to);
        let sums = self.sums_of_chunks(operands, to);
        let chunks = if in_turn || sums > 0 { 1 } else { shape.chunks() };
        let mut stores = vec![a.binding.clone(), b.binding.clone(), binding(to, ty)];
        stores.extend(epilogue.iter().flat_map(|epilogue| epilogue.stores.clone()));
        let all = || Ok(std::iter::once(0..self.extent.rows).collect());
        // The chunks of a product are in memory beside it: all of them, or a sum for each level of their
        // tree.
        let [m, n, batch] = shape.of_entries(1);
        let turns = if in_turn { shape.chunks() } else { 0 };
        let kept = if in_turn { Layers { turns, ..Layers::new(m, n, batch) }.levels() } else { chunks };
        let room = self.target.max_binding_bytes / (4 * kept * m * n * batch).max(1) as u64;
        let most = self.most_entries(shape).min(if kept > 1 { room } else { u64::MAX });
        let ranges = if shape.contract { all() } else { self.row_ranges_of(ty, *root, &stores, most) }?;
        for rows in ranges {
            let [m, n, batch] = shape.of_entries(self.entries(ty, rows.len()));
            let elements = batch * m * n;
            let mut bindings = self.bind(&stores, &rows);
            let c = if chunks > 1 {
                self.grow(Store::Temp(*root), 4 * (chunks * elements) as u64);
                bindings[2] = self.all(Store::Temp(*root));
                Layers { offset: 0, batch: m * n, chunk: elements, ..Layers::new(m, n, batch * chunks) }
            } else {
                let layers = Layers::new(m, n, batch);
                Layers { offset: to.inside, batch: to.row(m * n), chunk: elements, turns, sums, ..layers }
            };
            self.layers(operands, bindings, &c)?;
            if chunks > 1 {
                // A result that is divided may be too large for one binding.
                let to = match rows.len() < self.extent.rows {
                    true => Destination::within(self.bind(&stores[2..3], &rows).remove(0), to, ty),
                    false => Destination::of(to, ty, &rows),
                };
                let from = Source { store: Store::Temp(*root), first: 0, stride: elements, leaves: chunks };
                self.tree(from, elements, &to, ReduceKind::Sum, *root)?;
            }
        }
        Ok(())
    }

    /// Returns the number of matrices in a value of this type: one, one for each shard, or one for each of
    /// the `rows` samples.
    fn entries(&self, ty: &Type, rows: usize) -> usize {
        match ty.lead {
            Lead::Global => 1,
            Lead::Shard => self.extent.shards,
            Lead::Sample => rows,
        }
    }

    /// Returns whether a workgroup computes all chunks of a tile in turn. On GPUs it does where the largest
    /// tiles still keep the adapter busy: then no chunk goes through memory on its own, and a map behind the
    /// product is its epilogue.
    fn is_in_turn(&self, operands: &Operands<'_>, to: Place) -> bool {
        let Operands { root, shape, .. } = operands;
        let entries = self.entries(&self.program.graph.nodes[*root].ty, self.extent.rows);
        let [m, n, batch] = shape.of_entries(entries);
        let turns = shape.chunks();
        let c = Layers { turns, ..Layers::new(m, n, batch) };
        let is_plain = shape.all != All::Columns && !shape.rounds;
        let fits = are_fours(&[n, to.inside, to.row(m * n)]);
        let is_large = turns > 1 && is_plain && fits && n >= 4;
        is_large && self.target.machine == Machine::Gpu && self.family(shape, &c) == Family::Tiles(128)
    }

    /// Returns how many chunks an invocation adds up itself, as [`Layers::sums`]: all of a product on a CPU,
    /// if there are enough invocations without one for each chunk. Then no chunk goes through memory.
    fn sums_of_chunks(&self, operands: &Operands<'_>, to: Place) -> usize {
        let Operands { root, shape, epilogue, .. } = operands;
        let entries = self.entries(&self.program.graph.nodes[*root].ty, self.extent.rows);
        let [m, n, batch] = shape.of_entries(entries);
        let sums = shape.chunks().next_power_of_two();
        let is_plain = !shape.rounds && epilogue.is_none() && !self.program.stores.is_half(to.store);
        if self.target.machine != Machine::Cpu || !is_plain || !(2..=JOIN).contains(&sums) {
            return 0;
        }
        let busy = self.target.busy_workgroups as usize;
        match self.family(shape, &Layers { sums, ..Layers::new(m, n, batch) }) {
            Family::Panels(rows) if m.div_ceil(rows) * n.div_ceil(32) * batch >= busy => sums,
            _ => 0,
        }
    }

    /// Launches a product over samples that is summed over the shards of each block. Up to [`JOIN`] shards
    /// are summed in registers. If the inner range has several chunks, the product of each shard is stored
    /// first. A GPU stores those of long shards too, and one tree adds up many products of the bucket.
    fn joined(&mut self, operands: &Operands<'_>, bucket: usize, inside: usize) -> Result<(), GraphError> {
        let (root, count) = (operands.root, operands.shape.m * operands.shape.n);
        if self.is_apart(operands, bucket) {
            let stride = self.program.buckets()[bucket].joined;
            let runs = Some(Runs { len: count, stride });
            let join = self.shards_in_turn(operands, inside, stride);
            if join > 1 {
                return self.join_in_turn(operands, (bucket, inside, stride), join);
            }
            self.grow(Store::ApartOf(bucket), self.apart_bytes(bucket));
            self.apart.entry(bucket).or_default().push(Apart { first: inside, count, join });
            return self.each(operands, Place { store: Store::ApartOf(bucket), inside, runs });
        }
        let apart = operands.shape.chunks() > 1;
        if apart {
            self.each(operands, Place::start(Store::Apart(root)))?;
        }
        let len = self.program.buckets()[bucket].len;
        let store = self.sums_of(bucket);
        for (at, block) in self.run.blocks().into_iter().enumerate() {
            let (first, end) = (block.start - self.run.first, block.end - self.run.first);
            let offset = at * len + inside;
            if apart {
                let to = Destination::vector(store, offset, count);
                let from = Source {
                    store: Store::Apart(root),
                    first: first * count,
                    stride: count,
                    leaves: end - first,
                };
                self.tree(from, count, &to, ReduceKind::Sum, root)?;
            } else {
                self.join_block(operands, first..end, store, offset)?;
            }
        }
        Ok(())
    }

    /// Returns the number of shards whose products a workgroup computes in turn: as many as leave enough
    /// workgroups with the largest tiles, and as are a subtree of the sum over shards.
    fn shards_in_turn(&self, operands: &Operands<'_>, inside: usize, stride: usize) -> usize {
        let shape = &operands.shape;
        let blocks = self.run.blocks();
        let shards = self.extent.shards;
        let is_subtree = |join: usize| {
            let last = blocks.len().saturating_sub(1);
            blocks.iter().enumerate().all(|(at, block)| {
                let is_whole = block.len().is_multiple_of(join) || at == last && block.len() > join;
                (block.start - self.run.first).is_multiple_of(join) && (is_whole || blocks.len() == 1)
            })
        };
        let fits = |join: &usize| {
            let c = Layers { turns: *join, ..Layers::new(shape.m, shape.n, shards.div_ceil(*join)) };
            is_subtree(*join) && self.family(shape, &c) == Family::Tiles(128)
        };
        let is_plain = shape.chunks() == 1 && are_fours(&[shape.n, inside, stride]);
        [8, 4, 2].into_iter().find(|join| is_plain && *join < 2 * shards && fits(join)).unwrap_or(1)
    }

    /// Launches a product over samples, `join` shards of which a workgroup computes in turn. If these are all
    /// shards, the result is the sum over them.
    fn join_in_turn(
        &mut self,
        operands: &Operands<'_>,
        (bucket, inside, stride): (usize, usize, usize),
        join: usize,
    ) -> Result<(), GraphError> {
        let [m, n] = [operands.shape.m, operands.shape.n];
        let (shards, count) = (self.extent.shards, m * n);
        let groups = shards.div_ceil(join);
        let both = [&operands.a, &operands.b].map(|operand| operand.binding.clone());
        let mut bindings = self.bind(&both, &(0..self.extent.rows));
        let shards = Some(Shards { first: 0, end: shards, join });
        let c = Layers {
            offset: inside,
            batch: stride,
            chunk: groups * count,
            turns: join,
            shards,
            ..Layers::new(m, n, groups)
        };
        let store = if groups > 1 {
            self.grow(Store::ApartOf(bucket), 4 * (groups * stride) as u64);
            self.apart.entry(bucket).or_default().push(Apart { first: inside, count, join });
            Store::ApartOf(bucket)
        } else {
            self.sums_of(bucket)
        };
        bindings.push(self.all(store));
        self.layers(operands, bindings, &c)
    }

    /// Returns whether the products of shards stay apart until their bucket is summed. On GPUs the sums of a
    /// large tile take most registers, and more workgroups are worth more than the memory that is saved where
    /// shards are long.
    fn is_apart(&self, operands: &Operands<'_>, bucket: usize) -> bool {
        let shape = &operands.shape;
        let layers = Layers::new(shape.m, shape.n, self.extent.shards);
        let allowed = self.target.max_binding_bytes.min(self.target.max_buffer_bytes);
        let fits = self.apart_bytes(bucket) <= allowed;
        let is_tiled =
            self.target.machine == Machine::Gpu && matches!(self.family(shape, &layers), Family::Tiles(_));
        self.extent.shards > 1 && fits && shape.longest >= LONG && is_tiled
    }

    /// Returns the bytes of all shards' parts of a bucket's products.
    fn apart_bytes(&self, bucket: usize) -> u64 {
        4 * (self.extent.shards * self.program.buckets()[bucket].joined) as u64
    }

    /// Launches a product over samples for a block of shards of the run, whose sum goes to element `offset`
    /// of a memory.
    fn join_block(
        &mut self,
        operands: &Operands<'_>,
        block: std::ops::Range<usize>,
        store: Store,
        offset: usize,
    ) -> Result<(), GraphError> {
        let (root, [m, n]) = (operands.root, [operands.shape.m, operands.shape.n]);
        let count = m * n;
        let join = block.len().next_power_of_two().min(JOIN);
        let groups = block.len().div_ceil(join);
        let both = [&operands.a, &operands.b].map(|operand| operand.binding.clone());
        let mut bindings = self.bind(&both, &(0..self.extent.rows));
        let shards = Some(Shards { first: block.start, end: block.end, join });
        let c = Layers { batch: count, shards, ..Layers::new(m, n, groups) };
        if groups == 1 {
            bindings.push(self.all(store));
            return self.layers(operands, bindings, &Layers { offset, ..c });
        }
        self.grow(Store::Temp(root), 4 * (groups * count) as u64);
        bindings.push(self.all(Store::Temp(root)));
        self.layers(operands, bindings, &c)?;
        let from = Source { store: Store::Temp(root), first: 0, stride: count, leaves: groups };
        self.tree(from, count, &Destination::vector(store, offset, count), ReduceKind::Sum, root)
    }
}

/// Returns the binding of a value at a place.
fn binding(place: Place, ty: &Type) -> Binding {
    Binding { store: place.store, row: (ty.lead == Lead::Sample).then(|| place.row(ty.count())) }
}
