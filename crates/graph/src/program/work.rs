//! What the kernel of a unit computes for each element, from which launches say what they compute in all.

use std::collections::{BTreeMap, BTreeSet};

use crate::codegen::inside;
use crate::fuse::{Fusion, Unit, UnitKind, in_order};
use crate::plan::WorkKind;
use crate::trace::{Graph, Lowering, NodeId};

/// What the kernel of a unit computes for each element that it stores or, in a reduction, reads.
#[derive(Clone, Debug, Default)]
pub struct UnitWork {
    /// The kind of computation.
    pub kind: WorkKind,
    /// The floating-point operations of an element. A product's own are not among them.
    pub flops: u64,
    /// The values that are read, each with whether only the element itself is read. A product's operands are
    /// not among them.
    pub reads: BTreeMap<NodeId, bool>,
}

impl UnitWork {
    /// Returns the work of a unit. `new` are the values that states are replaced with.
    pub fn of(graph: &Graph, fusion: &Fusion, unit: &Unit, new: &BTreeSet<NodeId>) -> Self {
        let computed = inside(graph, fusion, unit);
        let operations = |&id: &NodeId| match &fusion.lowering[id] {
            Lowering::Pointwise(_) if graph.nodes[id].op.name() == "fma" => 2,
            Lowering::Pointwise(_) if !graph.nodes[id].inputs.is_empty() => 1,
            _ => 0,
        };
        let mut reads = BTreeMap::new();
        for &root in &unit.roots {
            for (id, aligned) in fusion.reads(graph, root) {
                let is_operand = |product: NodeId| {
                    graph.nodes[product].inputs.iter().any(|&input| in_order(graph, fusion, input) == id)
                };
                if !unit.product.is_some_and(is_operand) && unit.product != Some(id) {
                    let entry = reads.entry(id).or_insert(true);
                    *entry = *entry && aligned;
                }
            }
        }
        let looks_up = |id: &NodeId| matches!(fusion.lowering[*id], Lowering::Take | Lowering::Embed);
        let kind = match unit.kind {
            UnitKind::Product => WorkKind::Product,
            UnitKind::Reduce => WorkKind::Reduce,
            UnitKind::Attention => WorkKind::Attention,
            UnitKind::RowSums => WorkKind::Embedding,
            _ if computed.iter().any(looks_up) => WorkKind::Embedding,
            _ if unit.roots.iter().any(|root| new.contains(root)) => WorkKind::Update,
            _ => WorkKind::Map,
        };
        Self { kind, flops: computed.iter().map(operations).sum(), reads }
    }
}
