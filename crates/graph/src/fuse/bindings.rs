//! The limits of kernels: how many buffers one needs, how deep one is, and what is stored so that no kernel
//! exceeds them.

use std::collections::{BTreeSet, VecDeque};

use super::reads::{Reads, loaded_operands, reads};
use super::{Fuser, MAX_BINDINGS};
use crate::trace::{Lowering, NodeId, State, View};

/// The most nodes from a kernel's result to what it loads, along any path. The text of a kernel is written by
/// a recursion of this depth, and drivers take long to compile kernels of thousands of statements.
const MAX_DEPTH: usize = 128;

/// The most permuted axes on a path from a kernel's result to what it loads. The text of an index may double
/// with each.
const MAX_PERMUTED: usize = 8;

impl Fuser<'_> {
    /// Stores the operands of kernels that would need more buffers than there are.
    ///
    /// It goes over all kernels in the order of their values until no kernel needs too many. A kernel is
    /// looked at again only after something that it computes came to be stored.
    pub(super) fn store_where_bindings_run_out(&mut self) {
        let users = self.users();
        let mut due = self.stored.clone();
        while !due.is_empty() {
            let mut next: BTreeSet<NodeId> = BTreeSet::new();
            let mut new: BTreeSet<NodeId> = BTreeSet::new();
            while let Some(root) = due.pop_first() {
                if !self.needs_too_many(root) {
                    continue;
                }
                let bases = self.graph.nodes[root].inputs.iter().map(|&i| self.base(i));
                let added: Vec<NodeId> =
                    bases.filter(|&b| self.is_pointwise(b) && !self.stored.contains(&b)).collect();
                self.stored.extend(&added);
                new.extend(&added);
                for value in added {
                    let affected = self.kernels_above(value, &users);
                    let (later, earlier): (Vec<_>, Vec<_>) =
                        affected.into_iter().partition(|kernel| *kernel > root && !new.contains(kernel));
                    due.extend(later);
                    next.extend(earlier);
                }
            }
            next.extend(new);
            due = next;
        }
    }

    /// Returns for each node the nodes whose kernels may compute it as an operand.
    fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![Vec::new(); self.graph.nodes.len()];
        for id in 0..self.graph.nodes.len() {
            for (_, input) in loaded_operands(self.graph, &self.lowering, id) {
                users[input].push(id);
            }
        }
        users
    }

    /// Returns the stored values whose kernels use a value directly or through values that are not stored.
    fn kernels_above(&self, value: NodeId, users: &[Vec<NodeId>]) -> BTreeSet<NodeId> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut pending: Vec<NodeId> = users[value].clone();
        while let Some(id) = pending.pop() {
            #[cfg(test)]
            super::tests::count();
            if self.stored.contains(&id) {
                found.insert(id);
            } else if !matches!(self.lowering[id], Lowering::SumShards) && seen.insert(id) {
                pending.extend(&users[id]);
            }
        }
        found
    }

    /// Returns whether the kernel of a value needs more buffers than there are. It looks no further than it
    /// must to know.
    fn needs_too_many(&self, root: NodeId) -> bool {
        // A sum over samples also reads where shards start.
        let is_over_samples = matches!(&self.lowering[root], Lowering::Reduce(sum) if sum.samples);
        let most = MAX_BINDINGS - usize::from(is_over_samples);
        let (mut values, mut sure) = (BTreeSet::new(), BTreeSet::new());
        let mut seen: BTreeSet<NodeId> = BTreeSet::new();
        let mut pending = VecDeque::from([root]);
        while let Some(id) = pending.pop_front() {
            #[cfg(test)]
            super::tests::count();
            let in_memory = self.stored.contains(&id) || self.lowering[id].is_given();
            if in_memory && id != root {
                let whole = self.whole(id);
                values.insert(whole);
                // These share their buffer with no other value.
                if !self.graph.nodes[whole].is_scalar_input() && !self.replaces.contains_key(&whole) {
                    sure.insert(whole);
                }
                if sure.len() > most {
                    return true;
                }
            } else if seen.insert(id) {
                pending.extend(loaded_operands(self.graph, &self.lowering, id).map(|(_, input)| input));
            }
        }
        self.buffers(values.into_iter().chain([root])) > most
    }

    /// Stores values where kernels would be deeper than [`MAX_DEPTH`] or permute axes more often than
    /// [`MAX_PERMUTED`]. Returns whether there was such a kernel.
    pub(super) fn store_where_kernels_are_deep(&mut self) -> bool {
        let before = self.stored.len();
        // For each node how deep it is in its kernel, and how many nodes below it permute axes.
        let mut depth = vec![[0usize; 2]; self.graph.nodes.len()];
        for id in 0..self.graph.nodes.len() {
            let is_constant = matches!(self.lowering[id], Lowering::Constant(_));
            if is_constant || self.lowering[id].is_given() || self.stored.contains(&id) {
                continue;
            }
            let permutes = matches!(self.lowering[id], Lowering::View(View::Permute(_)));
            let moves = permutes || matches!(self.lowering[id], Lowering::View(View::Slice(_)));
            let mut own = [1, usize::from(permutes)];
            for axis in 0..2 {
                let operands = loaded_operands(self.graph, &self.lowering, id);
                own[axis] += operands.map(|(_, input)| depth[input][axis]).max().unwrap_or(0);
            }
            let is_deep = own[0] >= MAX_DEPTH && (moves || self.is_pointwise(id));
            if is_deep || permutes && own[1] > MAX_PERMUTED {
                self.stored.insert(id);
                self.loaded.insert(id);
            } else {
                depth[id] = own;
            }
        }
        self.stored.len() > before
    }

    pub(super) fn reads(&self, root: NodeId) -> Reads {
        reads(self.graph, &self.lowering, |id| self.stored.contains(&id), root)
    }

    /// Returns the value in whose memory a value lies.
    pub(super) fn whole(&self, id: NodeId) -> NodeId {
        self.parts.get(&id).map_or(id, |part| part.whole)
    }

    /// Returns how many buffers hold the values. Scalar inputs share one, and the new value of a state may
    /// share that of the old one.
    pub(super) fn buffers(&self, values: impl Iterator<Item = NodeId>) -> usize {
        let values: BTreeSet<NodeId> = values.map(|id| self.whole(id)).collect();
        let scalars = values.iter().filter(|&&id| self.graph.nodes[id].is_scalar_input()).count();
        let states: BTreeSet<usize> = values.iter().filter_map(|&id| self.state(id)).collect();
        let replaced = |id: &&NodeId| self.replaces.get(id).is_some_and(|state| states.contains(state));
        values.len() - scalars.saturating_sub(1) - values.iter().filter(replaced).count()
    }

    /// Returns the state that a node is the old value of.
    pub(super) fn state(&self, id: NodeId) -> Option<usize> {
        self.graph.nodes[id].op.downcast_ref().map(|&State(index)| index)
    }
}
