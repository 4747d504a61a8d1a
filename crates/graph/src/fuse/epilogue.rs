//! Epilogues: maps that the kernel of a product computes, and values that need no memory after all.

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::{Snippet, snippets};

use super::{Fusion, MAX_BINDINGS, Unit, UnitKind};
use crate::fuse::in_order;
use crate::ops::MatMul;
use crate::passes::halves;
use crate::trace::{Graph, Lowering, NodeId};
use crate::values::tree::PRODUCT_CHUNK;
use crate::values::{DType, Lead};

impl Fusion {
    /// Returns for each value the units that load it.
    pub(super) fn readers(&self, graph: &Graph) -> BTreeMap<NodeId, BTreeSet<usize>> {
        let mut readers: BTreeMap<NodeId, BTreeSet<usize>> = BTreeMap::new();
        for (at, unit) in self.units.iter().enumerate() {
            for id in unit.roots.iter().flat_map(|&root| self.reads(graph, root).into_keys()) {
                readers.entry(id).or_default().insert(at);
            }
        }
        readers
    }

    /// Returns the values that have a place of their own in memory: new states, what is summed over shards,
    /// and parts, which are read as the whole.
    fn placed(&self, graph: &Graph) -> BTreeSet<NodeId> {
        let is_sum = |id: &NodeId| matches!(self.lowering[*id], Lowering::SumShards);
        let sums = (0..graph.nodes.len()).filter(is_sum).map(|id| graph.nodes[id].inputs[0]);
        let placed = sums.chain(graph.updates.values().copied()).map(|id| in_order(graph, self, id));
        placed.chain(self.parts.keys().copied()).collect()
    }

    /// Returns the values that have to be in memory: those with a place of their own, and outputs.
    pub(super) fn needed(&self, graph: &Graph) -> BTreeSet<NodeId> {
        let outputs = graph.outputs.iter().map(|output| in_order(graph, self, output.node));
        self.placed(graph).into_iter().chain(outputs).collect()
    }

    /// Drops values that were stored for several users, all of which came to be in the value's own kernel.
    pub(super) fn keep_in_registers(&mut self, graph: &Graph) {
        let (readers, needed) = (self.readers(graph), self.needed(graph));
        for (at, unit) in self.units.iter_mut().enumerate().filter(|(_, unit)| unit.kind == UnitKind::Map) {
            unit.roots.retain(|root| {
                let inside = readers.get(root).is_some_and(|readers| readers.iter().eq([&at]));
                let kept = !inside || needed.contains(root);
                if !kept {
                    self.stored.remove(root);
                }
                kept
            });
        }
    }

    /// Moves a map into the kernel of a matrix product, if only that map needs the product, element by
    /// element. What comes before a bias and an activation so never reaches memory.
    pub(super) fn fuse_epilogues(&mut self, graph: &Graph) {
        let (readers, needed) = (self.readers(graph), self.needed(graph));
        let (placed, halves) = (self.placed(graph), halves(graph));
        let mut finished: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, unit) in self.units.iter().enumerate() {
            let Some(product) = unit.product.filter(|id| !needed.contains(id)) else { continue };
            let Some(users) = readers.get(&product).filter(|users| users.len() == 1) else { continue };
            let Some(&user) = users.first() else { continue };
            let map = &self.units[user];
            let free = |root: NodeId| !placed.contains(&root) && !halves[root];
            if matches!(map.roots[..], [root] if free(root) && self.is_epilogue(graph, map, root, product)) {
                finished.insert(user, at);
            }
        }
        let mut units: Vec<Option<Unit>> = std::mem::take(&mut self.units).into_iter().map(Some).collect();
        for (map, product) in finished {
            let product = units[product].take();
            if let (Some(map), Some(product)) = (&mut units[map], product) {
                self.stored.remove(&product.roots[0]);
                (map.kind, map.product) = (UnitKind::Product, product.product);
            }
        }
        self.units = units.into_iter().flatten().collect();
    }

    /// Returns whether the kernel of a product can compute a map: plain arithmetic on its element and those
    /// beside it, and no tree after it.
    fn is_epilogue(&self, graph: &Graph, map: &Unit, root: NodeId, product: NodeId) -> bool {
        let (ty, node) = (&graph.nodes[root].ty, &graph.nodes[product]);
        let Lowering::MatMul { transpose_a, transpose_b, rounds: false } = self.lowering[product] else {
            return false;
        };
        let inner = MatMul { transpose_a, transpose_b }.inner(&graph.nodes[node.inputs[0]].ty);
        let reads = self.reads(graph, root);
        let scalars = reads.keys().filter(|id| graph.nodes[**id].is_scalar_input()).count();
        map.kind == UnitKind::Map
            && (ty.lead, ty.count()) == (node.ty.lead, node.ty.count())
            && ty.dtype == DType::F32
            && ty.lead != Lead::Shard
            && inner <= PRODUCT_CHUNK
            && reads.get(&product) == Some(&true)
            // The product itself makes room for its two operands; the result is one more.
            && reads.len() - scalars.saturating_sub(1) + 2 <= MAX_BINDINGS
            && self.is_plain(graph, root, product, &[snippets::ROUND_HALF])
    }

    /// Returns whether everything between a value and the product is arithmetic that does not ask where the
    /// element is and calls no functions but these.
    pub(super) fn is_plain(
        &self,
        graph: &Graph,
        root: NodeId,
        product: NodeId,
        functions: &[Snippet],
    ) -> bool {
        let (mut pending, mut seen) = (vec![root], BTreeSet::new());
        while let Some(id) = pending.pop() {
            let is_end = id != root && (id == product || self.stored.contains(&id));
            if is_end || !seen.insert(id) {
                continue;
            }
            match &self.lowering[id] {
                Lowering::Constant(c) if c.is_finite() => {}
                Lowering::Leaf | Lowering::SumShards => {}
                Lowering::View(_) => pending.push(graph.nodes[id].inputs[0]),
                Lowering::Pointwise(e) => {
                    let placed = ["$row", "$element", "$axis"].iter().any(|name| e.wgsl.contains(name));
                    let known = e.snippets.iter().all(|s| functions.contains(s));
                    if placed || !known || !e.whole.is_empty() {
                        return false;
                    }
                    pending.extend(&graph.nodes[id].inputs);
                }
                _ => return false,
            }
        }
        true
    }
}
