//! Which tensors of the state are updated from each other, so that one device can update them for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Program;
use crate::fuse::in_order;
use crate::trace::{Lowering, NodeId, State, StateKind};

/// Tensors of the state whose new values depend on each other and on sums, and on no other tensor that the
/// optimizer keeps. A device that has the sums and these tensors can update them alone: no kernel that does
/// so needs another tensor or computes what other updates need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateGroup {
    /// The parameters and statistics, by index.
    pub shared: Vec<usize>,
    /// What the optimizer keeps for them, by index. It is never empty, and no segment of the training step
    /// but its last one reads it, nor do the other programs.
    pub kept: Vec<usize>,
}

impl Program {
    /// Returns the groups of tensors that can be updated apart, in the order of their first tensors. Tensors
    /// for which the optimizer keeps nothing are in no group, nor are those on which an output or another
    /// segment depends through what the optimizer keeps. What the optimizer keeps and one of the `others`
    /// reads, which are programs on the same states, is shared as parameters are.
    ///
    /// Updates are in one group if a kernel of one of them computes what the other one takes. With
    /// [`crate::Layout::states_apart`] this is not so for values that need no tensor of the state.
    pub fn update_groups(&self, others: &[Arc<Program>]) -> Vec<UpdateGroup> {
        let last = self.segments() - 1;
        let mut sets = Sets::new(self.graph.states.len());
        let behind = self.join_by_kernels(last, &mut sets);
        let read_elsewhere: BTreeSet<usize> =
            others.iter().flat_map(|other| other.read_before(other.segments())).collect();
        let is_the_optimizers = |state: usize| self.graph.states[state].kind == StateKind::Optimizer;
        let is_kept = |state: usize| is_the_optimizers(state) && !read_elsewhere.contains(&state);
        let shown = self.graph.outputs.iter().filter(|output| self.fusion.segment[output.node] == last);
        let shown = shown.flat_map(|output| self.tensors_behind(output.node, &behind));
        let mut common: BTreeSet<usize> = shown.map(|state| sets.root(state)).collect();
        common.extend(
            self.read_before(last)
                .into_iter()
                .filter(|&state| is_the_optimizers(state))
                .map(|s| sets.root(s)),
        );
        let mut groups: BTreeMap<usize, UpdateGroup> = BTreeMap::new();
        for &state in self.graph.updates.keys() {
            let group = groups.entry(sets.root(state)).or_default();
            if is_kept(state) { group.kept.push(state) } else { group.shared.push(state) }
        }
        let apart = |(root, group): &(usize, UpdateGroup)| !common.contains(root) && !group.kept.is_empty();
        let mut groups: Vec<UpdateGroup> = groups.into_iter().filter(apart).map(|(_, group)| group).collect();
        groups.sort_by_key(|group| (group.shared.first().copied(), group.kept.first().copied()));
        groups
    }

    /// Joins the tensors that a kernel of the last segment needs: those that it loads or replaces, and those
    /// that kernels need whose results it loads. A device that leaves out one of these updates has not what
    /// the others take. Returns for each value that such kernels store one of the tensors, if there are any.
    fn join_by_kernels(&self, last: usize, sets: &mut Sets) -> BTreeMap<NodeId, usize> {
        let mut replaced: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (&state, &value) in &self.graph.updates {
            replaced.entry(in_order(&self.graph, &self.fusion, value)).or_default().push(state);
        }
        let mut behind: BTreeMap<NodeId, usize> = BTreeMap::new();
        for unit in &self.fusion.units[self.units_of(last)] {
            let mut states: Vec<usize> = Vec::new();
            for root in &unit.roots {
                let reads = self.fusion.reads(&self.graph, *root).into_keys();
                states.extend(reads.flat_map(|id| self.tensors_behind(id, &behind)));
                states.extend(replaced.get(root).into_iter().flatten());
            }
            states.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
            if let Some(&first) = states.first() {
                behind.extend(unit.roots.iter().map(|&root| (root, first)));
            }
        }
        // A new value that is not computed in place is copied, whatever it is.
        for (&value, states) in &replaced {
            let all: Vec<usize> = self.tensors_behind(value, &behind).chain(states.iter().copied()).collect();
            all.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
        }
        behind
    }

    /// Returns the tensors that a device must update to have a value of the last segment, one of each set.
    fn tensors_behind(
        &self,
        value: NodeId,
        behind: &BTreeMap<NodeId, usize>,
    ) -> impl Iterator<Item = usize> + use<> {
        let (mut found, mut pending) = (BTreeSet::new(), vec![value]);
        while let Some(id) = pending.pop() {
            let id = in_order(&self.graph, &self.fusion, id);
            let node = &self.graph.nodes[id];
            found.extend(node.op.downcast_ref().map(|&State(state)| state));
            found.extend(behind.get(&id));
            // Such values are there when what they are made of is.
            pending.extend(self.fusion.written.get(&id));
            if matches!(self.fusion.lowering[id], Lowering::Concat(_)) {
                pending.extend(&node.inputs);
            }
        }
        found.into_iter()
    }

    /// Returns the states that segments before one read.
    fn read_before(&self, last: usize) -> BTreeSet<usize> {
        let units = self.fusion.units.iter().filter(|unit| unit.segment < last);
        let read = units
            .flat_map(|unit| unit.roots.iter())
            .flat_map(|&root| self.fusion.reads(&self.graph, root).into_keys().collect::<Vec<_>>());
        let state = |id: usize| self.graph.nodes[id].op.downcast_ref().map(|&State(state)| state);
        read.filter_map(state).collect()
    }
}

/// Disjoint sets of states.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn root(&self, mut state: usize) -> usize {
        while self.0[state] != state {
            state = self.0[state];
        }
        state
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        let (least, most) = (one.min(other), one.max(other));
        self.0[most] = least;
    }
}

#[cfg(test)]
mod tests;
