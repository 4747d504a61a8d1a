//! Values that several updates share, in kernels of their own, where devices may leave out updates.
//!
//! A device that holds a part of the state leaves out the kernels that update the rest
//! ([`crate::plan::Plan::hold_some`]). What such a kernel computes beside an update is then missing. So a
//! value that needs no tensor of the state and that other kernels load must not be in a kernel with an
//! update. Such values are a share of a gradient that two biases have in common, and the factor by which
//! gradients are clipped.

use super::{Fusion, Unit, UnitKind};
use crate::trace::{Graph, Lowering, NodeId, State};

impl Fusion {
    /// Moves the values of the last segment that need no tensor of the state out of the kernels of those
    /// that do, if other kernels load them. No bit depends on it.
    pub(crate) fn part_updates(&mut self, graph: &Graph) {
        if graph.updates.is_empty() {
            return;
        }
        let last = self.units.iter().map(|unit| unit.segment).max().unwrap_or(0);
        let (readers, needed) = (self.readers(graph), self.needed(graph));
        let needs_state = self.needs_state(graph, last);
        let mut units: Vec<Unit> = Vec::with_capacity(self.units.len());
        for (at, mut unit) in std::mem::take(&mut self.units).into_iter().enumerate() {
            let is_update = |root: &NodeId| needs_state[*root];
            let is_shared = |root: &NodeId| {
                let is_loaded = readers.get(root).is_some_and(|own| own.iter().any(|reader| *reader != at));
                !is_update(root) && (is_loaded || needed.contains(root))
            };
            if unit.kind == UnitKind::Map && unit.segment == last && unit.roots.iter().any(is_update) {
                let (shared, own): (Vec<NodeId>, Vec<NodeId>) =
                    unit.roots.iter().partition(|id| is_shared(id));
                if !shared.is_empty() {
                    units.push(Unit { roots: shared, ..unit.clone() });
                }
                unit.roots = own;
            }
            units.push(unit);
        }
        self.units = units;
    }

    /// Returns for each node whether a kernel of the last segment that has it needs a tensor of the state: it
    /// loads one, directly or through what other kernels of the segment store, or replaces one.
    fn needs_state(&self, graph: &Graph, last: usize) -> Vec<bool> {
        let new = self.new_states(graph);
        let mut needs: Vec<bool> = Vec::with_capacity(graph.nodes.len());
        for (id, node) in graph.nodes.iter().enumerate() {
            // What earlier segments store is there on every device.
            let is_there = matches!(self.lowering[id], Lowering::SumShards)
                || self.segment[id] < last && self.stored.contains(&id);
            let is_behind = node.op.is::<State>() || node.inputs.iter().any(|&input| needs[input]);
            needs.push(new.contains(&id) || !is_there && is_behind);
        }
        needs
    }
}
