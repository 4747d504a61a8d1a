//! Which tensors of the state are updated from each other, so that one device can update them for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Program;
use crate::trace::{Lowering, State, StateKind};

/// Tensors of the state whose new values depend on each other and on sums, and on no other tensor that the
/// optimizer keeps. A device that has the sums and these tensors can update them alone.
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
    pub fn update_groups(&self, others: &[Arc<Program>]) -> Vec<UpdateGroup> {
        let reads = self.states_behind_sums();
        let mut sets = Sets::new(self.graph.states.len());
        for (&state, &value) in &self.graph.updates {
            reads[value].iter().for_each(|&other| sets.join(state, other));
        }
        let last = self.segments() - 1;
        for unit in self.fusion.units.iter().filter(|unit| unit.segment == last) {
            let states: Vec<usize> =
                unit.roots.iter().flat_map(|&root| reads[root].iter().copied()).collect();
            states.windows(2).for_each(|pair| sets.join(pair[0], pair[1]));
        }
        let read_elsewhere: BTreeSet<usize> =
            others.iter().flat_map(|other| other.read_before(other.segments())).collect();
        let is_the_optimizers = |state: usize| self.graph.states[state].kind == StateKind::Optimizer;
        let is_kept = |state: usize| is_the_optimizers(state) && !read_elsewhere.contains(&state);
        let shown = self.graph.outputs.iter().filter(|output| self.fusion.segment[output.node] == last);
        let mut common: BTreeSet<usize> =
            shown.flat_map(|output| reads[output.node].iter()).map(|&state| sets.root(state)).collect();
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

    /// Returns for each node the states on which it depends without a sum over shards in between.
    fn states_behind_sums(&self) -> Vec<BTreeSet<usize>> {
        let mut reads: Vec<BTreeSet<usize>> = Vec::with_capacity(self.graph.nodes.len());
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let mut own = BTreeSet::new();
            if !matches!(self.fusion.lowering[id], Lowering::SumShards) {
                own.extend(node.op.downcast_ref().map(|&State(state)| state));
                node.inputs.iter().for_each(|&input| own.extend(&reads[input]));
            }
            reads.push(own);
        }
        reads
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
mod tests {
    use super::*;
    use crate::{Tape, Type};

    /// A step on two parameters with a momentum each; `tie` ties them together, and another program may read
    /// the first one's momentum.
    fn groups(tie: bool, is_read: bool) -> Vec<UpdateGroup> {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[4]));
        let [w, u] = ["w", "u"].map(|name| tape.state(name, &[3, 4], StateKind::Parameter));
        let plain = tape.state("plain", &[3], StateKind::Parameter);
        let [mw, mu] = ["w/m", "u/m"].map(|name| tape.state(name, &[3, 4], StateKind::Optimizer));
        let loss = (x.matmul_t(&w) * x.matmul_t(&u) + &plain).sum(&[-1]).sum_shards();
        let gradients = tape.gradients(&loss, &[w.clone(), u.clone(), plain.clone()]);
        let new = &mw * 0.9 + &gradients[0];
        let other = if tie { &mu * 0.9 + &gradients[1] * &new } else { &mu * 0.9 + &gradients[1] };
        for (state, value) in [(&w, &w - &(&new * 0.1)), (&mw, new), (&u, &u - &(&other * 0.1)), (&mu, other)]
        {
            tape.update(state, &value);
        }
        tape.update(&plain, &(&plain - &gradients[2]));
        tape.output("loss", &loss);
        let other = Tape::new();
        let y = other.input("y", Type::sample(&[4]));
        let parameters = ["w", "u"].map(|name| other.state(name, &[3, 4], StateKind::Parameter));
        let plain = other.state("plain", &[3], StateKind::Parameter);
        let momentum = other.state("w/m", &[3, 4], StateKind::Optimizer);
        let used = if is_read { &momentum } else { &parameters[0] };
        other.output("y", &(y.matmul_t(used) + plain));
        let compile = |tape: &Tape| Program::compile(&tape.finish().unwrap()).unwrap();
        compile(&tape).update_groups(&[Arc::new(compile(&other))])
    }

    #[test]
    fn a_parameter_and_its_momentum_are_a_group() {
        let group = |shared, kept| UpdateGroup { shared: vec![shared], kept: vec![kept] };
        assert_eq!(groups(false, false), [group(0, 3), group(1, 4)]);
    }

    #[test]
    fn tensors_that_meet_in_an_update_are_one_group() {
        assert_eq!(groups(true, false), [UpdateGroup { shared: vec![0, 1], kept: vec![3, 4] }]);
    }
    #[test]
    fn what_another_program_reads_is_shared() {
        let group = |shared, kept| UpdateGroup { shared, kept };
        assert_eq!(groups(false, true), [group(vec![1], vec![4])]);
        assert_eq!(groups(true, true), [group(vec![0, 1, 3], vec![4])]);
    }
}
