//! Groups of sums over samples, or over axes that are not the last ones, which one kernel of a GPU computes:
//! they go over the same elements and read some of the same values, such as the gradients of a layer
//! normalization's weight and bias.

use std::collections::BTreeSet;

use super::store::{Store, Stores, in_order};
use super::{Fusion, MAX_BINDINGS, UnitKind};
use crate::trace::{Graph, Lowering, NodeId, Reduction};

/// The most sums of a group: what fits the least workgroup memory that WebGPU guarantees.
const MOST: usize = 2;

/// The most units between the first sum of a group and the last.
const NEAR: usize = 64;

/// Returns the groups of units, in which each such sum is, alone or with another. `taken` are units that are
/// computed in some other way.
pub fn column_groups(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    taken: &BTreeSet<usize>,
) -> Vec<Vec<usize>> {
    let last = fusion.units.last().map_or(0, |unit| unit.segment);
    let reads = fusion.unit_reads(graph);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in (0..fusion.units.len()).filter(|at| !taken.contains(at)) {
        let Some(reduction) = reduction(graph, fusion, at) else { continue };
        let (unit, own) = (&fusion.units[at], &reads[at]);
        let may_wait = unit.segment < last || graph.updates.is_empty();
        let fits = |group: &&mut Vec<usize>| {
            let first = group[0];
            let from = |at: usize| &graph.nodes[graph.nodes[fusion.units[at].roots[0]].inputs[0]].ty;
            let is_alike = self::reduction(graph, fusion, first) == Some(reduction)
                && from(first) == from(at)
                && fusion.units[first].segment == unit.segment;
            let theirs: BTreeSet<NodeId> = group.iter().flat_map(|&at| reads[at].iter().copied()).collect();
            let roots: BTreeSet<NodeId> =
                group.iter().flat_map(|&at| fusion.units[at].roots.iter().copied()).collect();
            let values = theirs.iter().chain(own).chain(&roots).chain(&unit.roots);
            let buffers: BTreeSet<Store> = values.map(|&id| stores.place(id).store).collect();
            // The group is computed when its last sum is due.
            let is_needed = || (first..=at).any(|between| !reads[between].is_disjoint(&roots));
            may_wait
                && at - first <= NEAR
                && is_alike
                && group.len() < MOST
                && !theirs.is_disjoint(own)
                && buffers.len() < MAX_BINDINGS
                && !is_needed()
        };
        match groups.iter_mut().rev().take(2).find(fits) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// Returns the sums of these groups that are parts of a bucket and that nothing else reads.
pub fn alone(graph: &Graph, fusion: &Fusion, stores: &Stores, groups: &[Vec<usize>]) -> BTreeSet<NodeId> {
    let readers = fusion.readers(graph);
    let shown: BTreeSet<NodeId> =
        graph.outputs.iter().map(|output| in_order(graph, fusion, output.node)).collect();
    let roots = groups.iter().flatten().flat_map(|&at| fusion.units[at].roots.iter().copied());
    let is_alone = |root: &NodeId| {
        matches!(stores.place(*root).store, Store::Partial(_))
            && !readers.contains_key(root)
            && !shown.contains(root)
    };
    roots.filter(is_alone).collect()
}

/// Returns what a unit sums, unless it goes along rows.
fn reduction<'a>(graph: &Graph, fusion: &'a Fusion, at: usize) -> Option<&'a Reduction> {
    let unit = &fusion.units[at];
    let (UnitKind::Reduce, Lowering::Reduce(reduction)) = (unit.kind, &fusion.lowering[unit.roots[0]]) else {
        return None;
    };
    let from = &graph.nodes[graph.nodes[unit.roots[0]].inputs[0]].ty;
    (reduction.samples || !reduction.is_trailing(from)).then_some(reduction)
}
