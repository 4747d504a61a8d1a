//! Implicit GEMM: operands of products that are only views of other values, such as the windows of a
//! convolution's image. The kernels of the products find each element where it is stored, and the operand is
//! never in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::spot::is_readable;
use super::{Fusion, UnitKind, reads};
use crate::fuse::in_order;
use crate::trace::{Graph, NodeId};
use crate::values::DType;

impl Fusion {
    /// Drops stored values that are views and that only products read.
    ///
    /// An element is found anew for each tile of the other operand. That is cheap beside copying it: with 3 x
    /// 3 windows and the smallest tiles of the kernels, the time that computing and storing the windows takes
    /// is lost again at some hundred channels, on the slowest of the software adapters, and memory is saved
    /// everywhere. So it is always done, and sizes do not matter.
    pub(super) fn read_through_views(&mut self, graph: &Graph) {
        let needed = self.needed(graph);
        let mut operands: BTreeMap<NodeId, Vec<(NodeId, usize)>> = BTreeMap::new();
        let mut others: BTreeSet<NodeId> = BTreeSet::new();
        for unit in &self.units {
            let Some(product) = unit.product else {
                others.extend(unit.roots.iter().flat_map(|&root| self.reads(graph, root).into_keys()));
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
        for (value, users) in operands {
            let ty = &graph.nodes[value].ty;
            let is_free = computed.contains(&value) && !needed.contains(&value) && !others.contains(&value);
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
