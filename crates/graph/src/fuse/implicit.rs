//! Values that products read and nothing else, and that are only views of others: the products' kernels can find each element
//! in those, so that these need no memory.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fusion, Unit, UnitKind, reads};
use crate::codegen::is_readable;
use crate::graph::{Graph, NodeId};
use crate::store::in_order;
use crate::types::DType;

impl Fusion {
    /// Finds them, and gives each a unit of its own: a plan may still compute them.
    pub(super) fn find_implicit(&mut self, graph: &Graph) {
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
                let mut stored = self.stored.clone();
                stored.insert(product);
                others.extend(reads(graph, &self.lowering, &stored, unit.roots[0]).into_keys());
            }
        }
        let is_implicit = |(value, users): (&NodeId, &Vec<(NodeId, usize)>)| {
            let node = &graph.nodes[*value].ty;
            self.stored.contains(value)
                && self.units.iter().any(|unit| unit.kind == UnitKind::Map && unit.roots.contains(value))
                && !needed.contains(value)
                && !others.contains(value)
                && (node.dtype, node.count() > 0) == (DType::F32, true)
                && users.iter().all(|&(product, side)| is_readable(graph, self, product, side, *value))
        };
        let implicit = operands.iter().filter(|&entry| is_implicit(entry)).map(|(&value, _)| value).collect();
        self.implicit = implicit;
        let units = std::mem::take(&mut self.units);
        self.units = units.into_iter().flat_map(|unit| self.apart(unit)).collect();
    }

    /// A unit without what is implicit, and that one by one.
    fn apart(&self, mut unit: Unit) -> Vec<Unit> {
        if unit.roots.len() == 1 {
            return vec![unit];
        }
        let own: Vec<NodeId> = unit.roots.iter().copied().filter(|id| self.implicit.contains(id)).collect();
        unit.roots.retain(|id| !own.contains(id));
        let alone = own.into_iter().map(|id| Unit { roots: vec![id], ..unit.clone() });
        let rest = (!unit.roots.is_empty()).then(|| unit.clone());
        rest.into_iter().chain(alone).collect()
    }

    /// What an implicit value is read from.
    pub(super) fn read_through(&self, graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
        let found = if self.implicit.contains(&id) {
            reads(graph, &self.lowering, &self.stored, id)
        } else {
            BTreeMap::new()
        };
        found.into_keys()
    }
}
