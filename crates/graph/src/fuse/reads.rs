//! What kernels load from memory.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fusion, in_order};
use crate::trace::{Graph, Lowering, NodeId, View};

/// What a kernel loads: each value, and whether it loads only the element that it computes.
pub type Reads = BTreeMap<NodeId, bool>;

impl Fusion {
    /// Returns what the kernel of a stored value loads.
    pub fn reads(&self, graph: &Graph, root: NodeId) -> Reads {
        reads(graph, &self.lowering, |id| self.stored.contains(&id), root)
    }

    /// Returns for each unit what it loads.
    pub(super) fn unit_reads(&self, graph: &Graph) -> Vec<BTreeSet<NodeId>> {
        let reads = |root: &NodeId| self.reads(graph, *root).into_keys();
        self.units.iter().map(|unit| unit.roots.iter().flat_map(reads).collect()).collect()
    }

    /// Returns the values in memory that states are replaced with.
    pub fn new_states(&self, graph: &Graph) -> BTreeSet<NodeId> {
        graph.updates.values().map(|&value| in_order(graph, self, value)).collect()
    }
}

/// Returns what the kernel of a value loads, given which values are stored.
pub(crate) fn reads(
    graph: &Graph,
    lowering: &[Lowering],
    is_stored: impl Fn(NodeId) -> bool,
    root: NodeId,
) -> Reads {
    let mut found = Reads::new();
    // A value that is used twice is walked through once.
    let mut seen: BTreeSet<(NodeId, bool)> = BTreeSet::new();
    let mut pending = vec![(root, !matches!(lowering[root], Lowering::Reduce(_)))];
    while let Some((id, aligned)) = pending.pop() {
        #[cfg(test)]
        super::tests::count();
        let in_memory = is_stored(id) || lowering[id].is_given();
        if in_memory && id != root {
            let entry = found.entry(id).or_insert(true);
            *entry = *entry && aligned;
            continue;
        }
        if !seen.insert((id, aligned)) {
            continue;
        }
        for (operand, input) in loaded_operands(graph, lowering, id) {
            let stays = match &lowering[id] {
                Lowering::View(View::Reshape) => true,
                Lowering::Pointwise(e) => !e.whole.contains(&operand),
                Lowering::Take => operand == 1,
                _ => false,
            };
            pending.push((input, aligned && stays));
        }
    }
    found
}

/// Returns the operands that the kernel of a node takes values from, with their numbers. The second operand
/// of a view is only waited for.
pub(super) fn loaded_operands<'a>(
    graph: &'a Graph,
    lowering: &[Lowering],
    id: NodeId,
) -> impl Iterator<Item = (usize, NodeId)> + use<'a> {
    let is_view = lowering[id].is_view();
    graph.nodes[id].inputs.iter().copied().enumerate().filter(move |(operand, _)| *operand == 0 || !is_view)
}
