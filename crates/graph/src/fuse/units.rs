//! Which stored values share a kernel.

use std::collections::{BTreeMap, BTreeSet};

use super::reads::Reads;
use super::{Fuser, MAX_BINDINGS, Unit, UnitKind};
use crate::ops::Checkpoint;
use crate::trace::{AttentionResult, Lowering, NodeId};
use crate::values::Lead;

/// A value that more units than this bind is common: it says little about which of them another value may
/// join.
const COMMON: usize = 16;

/// What the values of a map have in common: segment, lead and number of elements.
type Space = (usize, Lead, usize);

/// The operands of attention, the first result of the kernel, whether it is causal, and the factor's bits.
type AttentionKey = (Vec<NodeId>, AttentionResult, bool, u32);

/// The maps so far, and which of them bind a value.
#[derive(Default)]
struct Homes {
    /// What each unit loads.
    loads: Vec<BTreeSet<NodeId>>,
    /// How many buffers each unit needs, that of the flag of new states included.
    buffers: Vec<usize>,
    /// The units that bind a memory, which the value that lies there as a whole stands for.
    binding: Index,
    /// The units that load or compute a value.
    knowing: Index,
}

/// Units by a value, of each space apart, each behind the number of buffers that it needs. Units that need
/// too many already are left out.
type Index = BTreeMap<(Space, NodeId), BTreeSet<(usize, usize)>>;

impl Fuser<'_> {
    /// Returns the units in the order of their values. A map joins an earlier one of its shape if all that it
    /// loads is there by then.
    pub(super) fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        let mut made_by: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut homes = Homes::default();
        let mut attentions: BTreeMap<AttentionKey, usize> = BTreeMap::new();
        let new = self.new_states();
        for &root in &self.stored {
            let kind = match self.lowering[root] {
                // It is there when the last of its parts is.
                Lowering::Concat(_) => {
                    let parts = self.graph.nodes[root].inputs.iter().map(|&i| self.source(i));
                    let last = parts.filter_map(|part| made_by.get(&part)).max().copied();
                    made_by.extend(last.map(|unit| (root, unit)));
                    continue;
                }
                Lowering::Reduce(_) => UnitKind::Reduce,
                Lowering::MatMul { .. } | Lowering::Contract => UnitKind::Product,
                Lowering::RowSums { .. } => UnitKind::RowSums,
                Lowering::Attention { .. } => UnitKind::Attention,
                _ => UnitKind::Map,
            };
            let reads = if kind == UnitKind::Map { self.reads(root) } else { Reads::new() };
            let home = match kind {
                UnitKind::Map => self.home(root, &reads, &units, &made_by, (&homes, &new)),
                UnitKind::Attention => self.attention(root).and_then(|key| attentions.get(&key)).copied(),
                _ => None,
            };
            let unit = home.unwrap_or(units.len());
            if home.is_none() {
                let product = (kind == UnitKind::Product).then_some(root);
                units.push(Unit { kind, roots: vec![], segment: self.segment[root], product });
            }
            attentions.extend(self.attention(root).map(|key| (key, unit)));
            units[unit].roots.push(root);
            made_by.insert(root, unit);
            self.settle(root, &reads, unit, (&units, &new), &mut homes);
        }
        units.sort_by_key(|u| u.segment);
        units
    }

    /// Returns what the results of attention have in common that one kernel computes.
    fn attention(&self, root: NodeId) -> Option<AttentionKey> {
        let Lowering::Attention { causal, scale, result } = self.lowering[root] else { return None };
        Some((self.graph.nodes[root].inputs.clone(), result.first(), causal, scale.to_bits()))
    }

    /// Returns the stored values that must be there before what `root` computes a second time.
    fn waits(&self, root: NodeId) -> BTreeSet<NodeId> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut pending = self.graph.nodes[root].inputs.clone();
        while let Some(id) = pending.pop() {
            let node = &self.graph.nodes[id];
            if node.op.is::<Checkpoint>() {
                let token = self.source(node.inputs[1]);
                found.extend(self.reads(token).into_keys().chain([token]));
            } else if !self.stored.contains(&id) && seen.insert(id) {
                pending.extend(&node.inputs);
            }
        }
        found
    }

    /// Returns the space of the maps that a value may share a kernel with.
    fn space(&self, root: NodeId) -> Option<Space> {
        let ty = &self.graph.nodes[root].ty;
        (ty.lead != Lead::Shard).then(|| (self.segment[root], ty.lead, ty.count()))
    }

    /// Returns the last map unit that can also compute `root`.
    fn home(
        &self,
        root: NodeId,
        reads: &Reads,
        units: &[Unit],
        made_by: &BTreeMap<NodeId, usize>,
        (homes, new): (&Homes, &BTreeSet<NodeId>),
    ) -> Option<usize> {
        let space = self.space(root)?;
        let waits = self.waits(root);
        let earliest =
            reads.keys().chain(&waits).filter_map(|id| made_by.get(id)).max().copied().unwrap_or(0);
        let candidates = self.candidates(root, reads, (space, self.is_late(root)), homes);
        let mut below = units.len();
        loop {
            let last =
                candidates.iter().filter_map(|&(binding, most)| last_of(binding, most, earliest..below));
            let unit = last.max()?;
            #[cfg(test)]
            super::tests::count();
            if self.takes(root, reads, (unit, &units[unit]), made_by, (&homes.loads[unit], new)) {
                return Some(unit);
            }
            below = unit;
        }
    }

    /// Returns whether a map unit of the right space can also compute `root`.
    fn takes(
        &self,
        root: NodeId,
        reads: &Reads,
        (at, unit): (usize, &Unit),
        made_by: &BTreeMap<NodeId, usize>,
        (theirs, new): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
    ) -> bool {
        let inside: Vec<NodeId> = reads.keys().copied().filter(|id| made_by.get(id) == Some(&at)).collect();
        let apart =
            |id: &NodeId| self.loaded.contains(id) || matches!(self.lowering[*id], Lowering::Concat(_));
        let in_register = inside.iter().all(|id| reads[id] && !apart(id));
        let is_late = self.is_late(root);
        let related =
            !inside.is_empty() || reads.keys().any(|id| theirs.contains(id) && self.relates(*id, is_late));
        let all = theirs.iter().chain(reads.keys()).chain(&unit.roots).copied().chain([root]);
        // The new states in a kernel share a buffer for the flag that says whether they are finite.
        let flag = usize::from(all.clone().any(|id| new.contains(&id)));
        in_register && related && self.buffers(all) + flag <= MAX_BINDINGS
    }

    /// Returns whether a value that two maps load is a reason for them to share a kernel. Where states are
    /// updated, a number such as the learning rate is none: the updates of several parameters share a launch,
    /// if their kernels are the same.
    fn relates(&self, id: NodeId, is_late: bool) -> bool {
        !is_late || self.graph.nodes[id].ty.count() > 1
    }

    /// Returns whether a value is a global one of the segment that updates the states.
    fn is_late(&self, root: NodeId) -> bool {
        self.last > 0 && self.segment[root] == self.last && self.graph.nodes[root].ty.lead == Lead::Global
    }

    /// Returns the values in memory that states are replaced with and that the last segment computes.
    fn new_states(&self) -> BTreeSet<NodeId> {
        let is_alias = |id: NodeId| self.lowering[id].is_reshape() && !self.stored.contains(&id);
        let values = self.graph.updates.values().map(|&id| self.graph.behind(id, is_alias));
        values.filter(|&id| self.segment[id] == self.last).collect()
    }

    /// Returns sets of units in which all are that can take `root`, and for each set the most buffers that
    /// one of its units may need.
    ///
    /// A unit that shares nothing but common values with the kernel gets all others as new buffers, so it is
    /// out of the question if it has not that many left. This keeps the search short where thousands of
    /// kernels read the same learning rate.
    fn candidates<'a>(
        &self,
        root: NodeId,
        reads: &Reads,
        (space, is_late): (Space, bool),
        homes: &'a Homes,
    ) -> Vec<(&'a BTreeSet<(usize, usize)>, usize)> {
        let bound: BTreeSet<NodeId> = reads.keys().chain([&root]).map(|&id| self.whole(id)).collect();
        let binding = |id: &NodeId| homes.binding.get(&(space, *id));
        let is_common = |id: &NodeId| binding(id).is_some_and(|units| units.len() > COMMON);
        let (common, rare): (BTreeSet<NodeId>, BTreeSet<NodeId>) = bound.into_iter().partition(is_common);
        // A state and its new value share a buffer, so they count as one, or not at all where the unit might
        // have the other of the two.
        let is_new = |id: &&NodeId| match self.state(**id) {
            _ if self.graph.nodes[**id].is_scalar_input() || self.replaces.contains_key(*id) => false,
            Some(state) => self
                .graph
                .updates
                .get(&state)
                .is_none_or(|value| self.replaces.get(value) != Some(&state) || rare.contains(value)),
            None => true,
        };
        let left = MAX_BINDINGS.saturating_sub(rare.iter().filter(is_new).count());
        let sharing = rare.iter().filter_map(|id| Some((binding(id)?, MAX_BINDINGS)));
        let known =
            reads.keys().filter(|id| common.contains(&self.whole(**id)) && self.relates(**id, is_late));
        let related = known.filter_map(|id| Some((homes.knowing.get(&(space, *id))?, left)));
        sharing.chain(related).collect()
    }

    /// Notes that `root` is in a unit.
    fn settle(
        &self,
        root: NodeId,
        reads: &Reads,
        at: usize,
        (units, new): (&[Unit], &BTreeSet<NodeId>),
        homes: &mut Homes,
    ) {
        homes.loads.resize_with(units.len(), BTreeSet::new);
        homes.buffers.resize(units.len(), 0);
        let (UnitKind::Map, Some(space)) = (units[at].kind, self.space(root)) else { return };
        let before = homes.buffers[at];
        for id in homes.loads[at].iter().chain(&units[at].roots) {
            for (index, id) in [(&mut homes.binding, self.whole(*id)), (&mut homes.knowing, *id)] {
                index.get_mut(&(space, id)).map(|units| units.remove(&(before, at)));
            }
        }
        homes.loads[at].extend(reads.keys());
        let known = || homes.loads[at].iter().chain(&units[at].roots).copied();
        let flag = usize::from(known().any(|id| new.contains(&id)));
        let buffers = self.buffers(known()) + flag;
        homes.buffers[at] = buffers;
        if buffers <= MAX_BINDINGS {
            for id in homes.loads[at].iter().chain(&units[at].roots) {
                for (index, id) in [(&mut homes.binding, self.whole(*id)), (&mut homes.knowing, *id)] {
                    index.entry((space, id)).or_default().insert((buffers, at));
                }
            }
        }
    }
}

/// Returns the last unit of a range that needs at most so many buffers.
fn last_of(units: &BTreeSet<(usize, usize)>, most: usize, range: std::ops::Range<usize>) -> Option<usize> {
    if range.is_empty() {
        return None;
    }
    let last = |buffers| units.range((buffers, range.start)..(buffers, range.end)).next_back();
    (0..=most).filter_map(last).map(|&(_, unit)| unit).max()
}
