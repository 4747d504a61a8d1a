//! Units that compute gradients of the same attention, which a GPU computes in one launch: that by the
//! queries, and those by the keys and values.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fusion, UnitKind};
use crate::trace::{AttentionResult, Graph, Lowering, NodeId};

/// Returns the pairs of units that compute all gradients of an attention. Nothing between the two reads what
/// the first one computes.
pub fn attention_pairs(graph: &Graph, fusion: &Fusion) -> Vec<[usize; 2]> {
    let reads = fusion.unit_reads(graph);
    let mut open: BTreeMap<(&[NodeId], bool, u32), usize> = BTreeMap::new();
    let mut pairs = Vec::new();
    for (at, unit) in fusion.units.iter().enumerate().filter(|(_, unit)| unit.kind == UnitKind::Attention) {
        let result = |root: &NodeId| fusion.written.get(root).copied().unwrap_or(*root);
        let first = result(&unit.roots[0]);
        let Lowering::Attention { causal, scale, result: of } = fusion.lowering[first] else { continue };
        if of.first() == AttentionResult::Values {
            continue;
        }
        let Some(before) = open.insert((&graph.nodes[first].inputs, causal, scale.to_bits()), at) else {
            continue;
        };
        let whole = |root: &NodeId| fusion.parts.get(root).map_or(*root, |part| part.whole);
        let roots: BTreeSet<NodeId> =
            fusion.units[before].roots.iter().flat_map(|root| [*root, result(root), whole(root)]).collect();
        let is_needed = (before + 1..at).any(|between| !reads[between].is_disjoint(&roots));
        if !is_needed && fusion.units[before].segment == unit.segment {
            pairs.push([before, at]);
        }
    }
    pairs
}
