//! Fusion: which nodes become kernels, and which live only inside of one.
//!
//! Every value that a kernel writes is *stored*. Dense ops and reductions store their results. A pointwise op
//! is stored when something outside of its kernel needs it; otherwise it is an expression inside the kernels
//! of its users. Stored pointwise values of one shape that do not wait for each other share a kernel. Nothing
//! here depends on the size of a shard, so every shard size runs the same kernels.

mod epilogue;
mod form;
mod implicit_gemm;
mod regroup;
mod spot;
mod store;

pub(crate) use self::form::{Digit, Form, Variable};
pub(crate) use self::regroup::{Group, regrouped};
pub(crate) use self::spot::Spot;
pub use self::store::Bucket;
pub(crate) use self::store::{Extent, Place, Store, Stores, in_order};

use std::collections::{BTreeMap, BTreeSet};

use crate::ops::Checkpoint;
use crate::passes::Parts;
use crate::trace::{Graph, Input, Lowering, NodeId, Product, State, View};
use crate::values::{Lead, Type};

/// The most storage buffers of one kernel: as many as every adapter has.
pub const MAX_BINDINGS: usize = 8;

/// One kernel, or a dense op with the few kernels it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// What the unit computes.
    pub kind: UnitKind,
    /// The values that the unit stores. Only maps store several.
    pub roots: Vec<NodeId>,
    /// The segment that the unit belongs to: the number of cross-shard sums on the way to it.
    pub segment: usize,
    /// The matrix product, if the unit is one: the unit stores it, or what a map makes of it.
    pub product: Option<NodeId>,
}

/// How a unit computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// The unit is a map: it computes element by element.
    Map,
    /// The unit is a reduction, with the expression of its operand inside.
    Reduce,
    /// The unit is a matrix product: plain, batched or contracted over samples.
    Product,
}

/// A graph that is partitioned into units.
#[derive(Clone, Debug)]
pub struct Fusion {
    /// The units in an order in which they can run.
    pub units: Vec<Unit>,
    /// The values that are in memory beside inputs and states.
    pub stored: BTreeSet<NodeId>,
    /// For each node its segment: the number of cross-shard sums on the way to it.
    pub segment: Vec<usize>,
    /// The lowering of each node.
    pub lowering: Vec<Lowering>,
    /// The values that lie inside of others.
    pub parts: Parts,
}

/// Partitions a simplified graph into units.
pub fn fuse(graph: &Graph, parts: Parts) -> Fusion {
    let lowering: Vec<Lowering> = graph.nodes.iter().map(|n| n.op.lowering()).collect();
    let mut fuser = Fuser {
        graph,
        segment: segments(graph, &lowering),
        lowering,
        stored: BTreeSet::new(),
        loaded: BTreeSet::new(),
        parts,
    };
    fuser.store_what_is_shared();
    fuser.store_added_products();
    while fuser.store_where_bindings_run_out() {}
    let units = fuser.units();
    let Fuser { stored, segment, lowering, parts, .. } = fuser;
    let mut fusion = Fusion { units, stored, segment, lowering, parts };
    fusion.keep_in_registers(graph);
    fusion.fuse_epilogues(graph);
    fusion.read_through_views(graph);
    fusion
}

fn segments(graph: &Graph, lowering: &[Lowering]) -> Vec<usize> {
    let mut segment = vec![0; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        let before = node.inputs.iter().map(|&i| segment[i]).max().unwrap_or(0);
        segment[id] = before + usize::from(matches!(lowering[id], Lowering::SumShards));
    }
    segment
}

struct Fuser<'a> {
    graph: &'a Graph,
    lowering: Vec<Lowering>,
    segment: Vec<usize>,
    stored: BTreeSet<NodeId>,
    /// Products that an addition takes. It has to load them from memory.
    loaded: BTreeSet<NodeId>,
    parts: Parts,
}

impl Fuser<'_> {
    /// Returns the node whose elements a view shows.
    fn base(&self, id: NodeId) -> NodeId {
        match self.lowering[id] {
            Lowering::View(_) => self.base(self.graph.nodes[id].inputs[0]),
            _ => id,
        }
    }

    fn is_pointwise(&self, id: NodeId) -> bool {
        self.lowering[id].is_inline()
    }

    /// Returns whether a node is cheap enough to be computed wherever it is used: a step from leaves, without
    /// elementary functions.
    fn is_cheap(&self, id: NodeId) -> bool {
        let from_leaves = |&i: &NodeId| {
            let base = self.base(i);
            matches!(self.lowering[base], Lowering::Leaf | Lowering::Constant(_)) || self.is_iota(base)
        };
        match &self.lowering[id] {
            Lowering::Pointwise(e) => {
                e.snippets.is_empty() && self.graph.nodes[id].inputs.iter().all(from_leaves)
            }
            _ => false,
        }
    }

    fn is_iota(&self, id: NodeId) -> bool {
        self.is_pointwise(id) && self.graph.nodes[id].inputs.is_empty()
    }

    /// Returns whether computing a node for each of two users is as little work as storing it and reading it
    /// twice: a step from values in memory.
    fn is_light(&self, id: NodeId) -> bool {
        let in_memory = |&i: &NodeId| {
            let source = self.source(i);
            self.stored.contains(&source)
                || matches!(self.lowering[source], Lowering::Leaf | Lowering::Constant(_))
        };
        let inputs = &self.graph.nodes[id].inputs;
        matches!(&self.lowering[id], Lowering::Pointwise(e) if e.snippets.is_empty())
            && inputs.len() <= 2
            && inputs.iter().all(in_memory)
    }

    /// Returns whether a node is a lookup at a place that arithmetic gives. Such a lookup costs its users no
    /// more than reading a copy of it would.
    fn is_moved(&self, id: NodeId) -> bool {
        matches!(self.lowering[id], Lowering::Pad(_) | Lowering::Im2Col { .. } | Lowering::Col2Im { .. })
    }

    fn store_what_is_shared(&mut self) {
        for (id, node) in self.graph.nodes.iter().enumerate() {
            match &self.lowering[id] {
                Lowering::MatMul { .. } | Lowering::Contract | Lowering::Concat(_) => {
                    node.inputs.iter().for_each(|&i| self.store_in_order(i));
                    if !matches!(self.lowering[id], Lowering::Concat(_)) {
                        node.inputs.iter().for_each(|&i| self.store_under_windows(i));
                    }
                    self.stored.insert(id);
                }
                Lowering::Reduce(_) => {
                    self.stored.insert(id);
                }
                Lowering::SumShards => self.store_in_order(node.inputs[0]),
                _ => {}
            }
        }
        let roots: Vec<NodeId> = self.graph.roots().collect();
        roots.into_iter().for_each(|id| self.store_in_order(id));
        let mut users: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for (id, node) in self.graph.nodes.iter().enumerate() {
            // A view is part of its users, unless it is stored: then they read that.
            let is_inside = matches!(self.lowering[id], Lowering::View(_)) && !self.stored.contains(&id);
            if is_inside || matches!(self.lowering[id], Lowering::Leaf | Lowering::Constant(_)) {
                continue;
            }
            for &i in &node.inputs {
                let base = self.source(i);
                users.entry(base).or_default().insert(id);
                let repeats = self.graph.nodes[i].ty.count() > self.graph.nodes[base].ty.count()
                    || self.graph.nodes[i].ty.lead != self.graph.nodes[base].ty.lead;
                if repeats && self.is_pointwise(base) && !self.is_cheap(base) {
                    self.stored.insert(base);
                }
            }
        }
        // Operands come first: whether they are in memory is known by then.
        for (&id, users) in users.iter().filter(|(_, users)| users.len() > 1) {
            let again = self.is_cheap(id) || self.is_moved(id) || users.len() == 2 && self.is_light(id);
            if self.is_pointwise(id) && !again {
                self.stored.insert(id);
            }
        }
    }

    /// Returns the same as [`Fuser::base`], but a view that is stored is read itself.
    fn source(&self, id: NodeId) -> NodeId {
        match self.lowering[id] {
            Lowering::View(_) if !self.stored.contains(&id) => self.source(self.graph.nodes[id].inputs[0]),
            _ => id,
        }
    }

    /// Stores a value in the row-major order of its own axes. A reshape needs nothing for it; other views are
    /// copied.
    fn store_in_order(&mut self, id: NodeId) {
        match &self.lowering[id] {
            Lowering::View(View::Reshape) => self.store_in_order(self.graph.nodes[id].inputs[0]),
            Lowering::Leaf | Lowering::SumShards => {}
            _ => {
                self.stored.insert(id);
            }
        }
    }

    /// Stores the image under an operand's windows, so that products can read it and the windows need no
    /// memory.
    fn store_under_windows(&mut self, id: NodeId) {
        let (mut id, mut is_window) = (id, false);
        while matches!(self.lowering[id], Lowering::View(_) | Lowering::Pad(_) | Lowering::Im2Col { .. }) {
            is_window |= matches!(self.lowering[id], Lowering::Im2Col { .. });
            id = self.graph.nodes[id].inputs[0];
        }
        if is_window && self.is_pointwise(id) {
            self.stored.insert(id);
        }
    }

    /// Stores each product that would reach an addition inside of a kernel, so that it goes through memory.
    fn store_added_products(&mut self) {
        let mut product = vec![false; self.graph.nodes.len()];
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let any = |product: &[bool]| node.inputs.iter().any(|&i| product[i]);
            product[id] = match &self.lowering[id] {
                Lowering::View(_) => product[node.inputs[0]],
                l if l.is_lookup() => product[node.inputs[0]],
                Lowering::Pointwise(e) => {
                    if e.adds {
                        let bases: Vec<NodeId> =
                            node.inputs.iter().filter(|&&i| product[i]).map(|&i| self.base(i)).collect();
                        self.stored.extend(bases.iter().copied());
                        self.loaded.extend(bases);
                    }
                    match e.product {
                        Product::Never => false,
                        Product::Makes => true,
                        Product::Passes => any(&product),
                    }
                }
                _ => false,
            };
        }
    }

    /// Stores the operands of kernels that would need more buffers than there are. Returns whether there was
    /// such a kernel.
    fn store_where_bindings_run_out(&mut self) -> bool {
        let before = self.stored.len();
        for root in self.stored.clone() {
            if self.buffers(self.reads(root).into_keys().chain([root])) <= MAX_BINDINGS {
                continue;
            }
            let bases = self.graph.nodes[root].inputs.iter().map(|&i| self.base(i));
            let pointwise: Vec<NodeId> = bases.filter(|&b| self.is_pointwise(b)).collect();
            self.stored.extend(pointwise);
        }
        self.stored.len() > before
    }

    fn reads(&self, root: NodeId) -> Reads {
        reads(self.graph, &self.lowering, &self.stored, root)
    }

    /// Returns how many buffers hold the values. Scalar inputs share one, and the new value of a state may
    /// share that of the old one.
    fn buffers(&self, values: impl Iterator<Item = NodeId>) -> usize {
        let whole = |id| self.parts.get(&id).map_or(id, |part| part.whole);
        let values: BTreeSet<NodeId> = values.map(whole).collect();
        let scalars = values.iter().filter(|&&id| self.is_scalar_input(id)).count();
        let replaced = |id: &NodeId| {
            let state = self.graph.updates.iter().find(|(_, v)| *v == id).map(|(&state, _)| state);
            let read = |v: &NodeId| self.graph.nodes[*v].op.downcast_ref().map(|&State(index)| index);
            state.is_some() && values.iter().any(|v| read(v) == state)
        };
        values.len() - scalars.saturating_sub(1) - values.iter().filter(|id| replaced(id)).count()
    }

    /// Returns the number of buffers for the flag of the new states among these values: 1, or 0 where there
    /// is no new state, or none that the last segment computes.
    fn flags(&self, mut values: impl Iterator<Item = NodeId>) -> usize {
        let last = self.segment.iter().max();
        let is_new = |id: NodeId| {
            Some(&self.segment[id]) == last
                && self.graph.updates.values().any(|&new| self.in_order(new) == id)
        };
        usize::from(values.any(is_new))
    }

    /// Does what [`in_order`] does, once it is known which values are stored.
    fn in_order(&self, id: NodeId) -> NodeId {
        match self.lowering[id] {
            Lowering::View(View::Reshape) if !self.stored.contains(&id) => {
                self.in_order(self.graph.nodes[id].inputs[0])
            }
            _ => id,
        }
    }

    fn is_scalar_input(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes[id];
        node.op.is::<Input>() && node.ty == Type::global(&[])
    }

    /// Returns the units in the order of their values. A map joins an earlier one of its shape if all that it
    /// loads is there by then.
    fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        let mut made_by: BTreeMap<NodeId, usize> = BTreeMap::new();
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
                _ => UnitKind::Map,
            };
            let home = if kind == UnitKind::Map { self.home(root, &units, &made_by) } else { None };
            let unit = home.unwrap_or(units.len());
            if home.is_none() {
                let product = (kind == UnitKind::Product).then_some(root);
                units.push(Unit { kind, roots: vec![], segment: self.segment[root], product });
            }
            units[unit].roots.push(root);
            made_by.insert(root, unit);
        }
        units.sort_by_key(|u| u.segment);
        units
    }

    /// Returns the stored values that must be there before what `root` computes a second time.
    fn waits(&self, root: NodeId) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut pending = self.graph.nodes[root].inputs.clone();
        while let Some(id) = pending.pop() {
            let node = &self.graph.nodes[id];
            if node.op.is::<Checkpoint>() {
                let token = self.source(node.inputs[1]);
                found.extend(self.reads(token).into_keys().chain([token]));
            } else if !self.stored.contains(&id) {
                pending.extend(&node.inputs);
            }
        }
        found
    }

    /// Returns the last map unit that can also compute `root`.
    fn home(&self, root: NodeId, units: &[Unit], made_by: &BTreeMap<NodeId, usize>) -> Option<usize> {
        let reads = self.reads(root);
        let waits = self.waits(root);
        let earliest =
            reads.keys().chain(&waits).filter_map(|id| made_by.get(id)).max().copied().unwrap_or(0);
        (earliest..units.len()).rev().find(|&u| {
            let unit = &units[u];
            let first = unit.roots[0];
            let ty = &self.graph.nodes[root].ty;
            let other = &self.graph.nodes[first].ty;
            let same_space = unit.kind == UnitKind::Map
                && unit.segment == self.segment[root]
                && (ty.lead, ty.count()) == (other.lead, other.count())
                && ty.lead != Lead::Shard;
            if !same_space {
                return false;
            }
            let inside: Vec<NodeId> =
                reads.keys().copied().filter(|id| made_by.get(id) == Some(&u)).collect();
            let apart =
                |id: &NodeId| self.loaded.contains(id) || matches!(self.lowering[*id], Lowering::Concat(_));
            let in_register = inside.iter().all(|id| reads[id] && !apart(id));
            let theirs: BTreeSet<NodeId> =
                unit.roots.iter().flat_map(|&r| self.reads(r).into_keys()).collect();
            let related = !inside.is_empty() || reads.keys().any(|id| theirs.contains(id));
            let all = theirs.iter().chain(reads.keys()).chain(&unit.roots).copied().chain([root]);
            in_register && related && self.buffers(all.clone()) + self.flags(all) <= MAX_BINDINGS
        })
    }
}

/// What a kernel loads: each value, and whether it loads only the element that it computes.
pub type Reads = BTreeMap<NodeId, bool>;

impl Fusion {
    /// Returns what the kernel of a stored value loads.
    pub fn reads(&self, graph: &Graph, root: NodeId) -> Reads {
        reads(graph, &self.lowering, &self.stored, root)
    }

    /// Returns the values in memory that states are replaced with.
    pub fn new_states(&self, graph: &Graph) -> BTreeSet<NodeId> {
        graph.updates.values().map(|&value| in_order(graph, self, value)).collect()
    }
}

fn reads(graph: &Graph, lowering: &[Lowering], stored: &BTreeSet<NodeId>, root: NodeId) -> Reads {
    let mut found = Reads::new();
    let mut pending = vec![(root, !matches!(lowering[root], Lowering::Reduce(_)))];
    while let Some((id, aligned)) = pending.pop() {
        let in_memory = stored.contains(&id) || matches!(lowering[id], Lowering::Leaf | Lowering::SumShards);
        if in_memory && id != root {
            let entry = found.entry(id).or_insert(true);
            *entry = *entry && aligned;
            continue;
        }
        let is_view = matches!(lowering[id], Lowering::View(_));
        for (operand, &input) in
            graph.nodes[id].inputs.iter().enumerate().filter(|(o, _)| *o == 0 || !is_view)
        {
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

#[cfg(test)]
mod tests;
