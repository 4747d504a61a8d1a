//! Implicit GEMM: operands of products that are only views of other values, such as the windows of a
//! convolution's image. The kernels of the products find each element where it is stored, and the operand is
//! never in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::spot::{Spot, is_readable, layered};
use super::store::{Place, Store};
use super::{Fusion, UnitKind, reads};
use crate::fuse::in_order;
use crate::trace::{AttentionResult, Graph, Lowering, NodeId};
use crate::values::DType;

impl Fusion {
    /// Returns whether attention can read an operand from what it is a view of, if `value`, which it is a
    /// reshape of, is not in memory.
    fn is_of_heads(&self, graph: &Graph, operand: NodeId, value: NodeId) -> bool {
        let spot = Spot::heads(graph, self, operand, Some(value));
        let width = graph.nodes[operand].ty.dims.last().copied().unwrap_or(1);
        spot.is_some_and(|spot| {
            let ty = &graph.nodes[spot.source].ty;
            let place = Place::start(Store::Value(spot.source));
            spot.inside.is_empty() && layered(&spot.address(ty, place), width).is_some()
        })
    }

    /// Drops stored values that are views and that only products, or attention, read. Maps and reductions
    /// that read what attention reads find it through the same views.
    ///
    /// An element is found anew for each tile of the other operand. That is cheap beside copying it: with 3 x
    /// 3 windows and the smallest tiles of the kernels, the time that computing and storing the windows takes
    /// is lost again at some hundred channels, on the slowest of the software adapters, and memory is saved
    /// everywhere. So it is always done, and sizes do not matter.
    pub(super) fn read_through_views(&mut self, graph: &Graph) {
        let needed = self.needed(graph);
        let mut operands: BTreeMap<NodeId, Vec<(NodeId, usize)>> = BTreeMap::new();
        let mut others: BTreeSet<NodeId> = BTreeSet::new();
        // What maps and reductions read. They read through views as well, but a copy is read faster.
        let mut inline: BTreeSet<NodeId> = BTreeSet::new();
        // For what attention reads the operands that it is read as.
        let mut heads: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for unit in &self.units {
            let Some(product) = unit.product else {
                let reads = unit.roots.iter().flat_map(|&root| self.reads(graph, root).into_keys());
                match unit.kind {
                    UnitKind::Map | UnitKind::Reduce => inline.extend(reads),
                    UnitKind::Attention => {
                        let inputs = &graph.nodes[unit.roots[0]].inputs;
                        let matrices = matrices(&self.lowering[unit.roots[0]]);
                        let (own, rest) = inputs.split_at(matrices.min(inputs.len()));
                        for &input in own {
                            heads.entry(in_order(graph, self, input)).or_default().insert(input);
                        }
                        others.extend(rest.iter().map(|&input| in_order(graph, self, input)));
                    }
                    _ => others.extend(reads),
                }
                continue;
            };
            for (side, &input) in graph.nodes[product].inputs.iter().enumerate() {
                operands.entry(in_order(graph, self, input)).or_default().push((product, side));
            }
            if product != unit.roots[0] {
                // What the map behind it reads.
                let is_stored = |id| id == product || self.stored.contains(&id);
                others.extend(reads(graph, &self.lowering, is_stored, unit.roots[0]).into_keys());
            }
        }
        let maps = self.units.iter().filter(|unit| unit.kind == UnitKind::Map);
        let computed: BTreeSet<NodeId> = maps.flat_map(|unit| unit.roots.iter().copied()).collect();
        let mut dropped: BTreeSet<NodeId> = BTreeSet::new();
        for &value in heads.keys() {
            operands.entry(value).or_default();
        }
        for (value, users) in operands {
            let ty = &graph.nodes[value].ty;
            let as_heads = heads.get(&value);
            let is_read = others.contains(&value) || inline.contains(&value) && as_heads.is_none();
            let is_free = computed.contains(&value) && !needed.contains(&value) && !is_read;
            let mut as_heads = as_heads.into_iter().flatten();
            let is_free = is_free && as_heads.all(|&operand| self.is_of_heads(graph, operand, value));
            let is_view = |&(product, side): &(NodeId, usize)| is_readable(graph, self, product, side, value);
            if is_free && (ty.dtype, ty.count() > 0) == (DType::F32, true) && users.iter().all(is_view) {
                self.stored.remove(&value);
                dropped.insert(value);
            }
        }
        self.units.iter_mut().for_each(|unit| unit.roots.retain(|root| !dropped.contains(root)));
        self.units.retain(|unit| !unit.roots.is_empty());
    }
}

/// Returns the number of the operands of attention that have heads: queries, keys, values, and where it is a
/// gradient that by the result.
fn matrices(lowering: &Lowering) -> usize {
    match lowering {
        Lowering::Attention { result: AttentionResult::Values | AttentionResult::LogSums, .. } => 3,
        _ => 4,
    }
}
