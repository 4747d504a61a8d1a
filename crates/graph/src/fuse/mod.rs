//! Fusion: which nodes become kernels, and which live only inside of one.
//!
//! Every value that a kernel writes is *stored*. Dense ops and reductions store their results. A pointwise op
//! is stored when something outside of its kernel needs it; otherwise it is an expression inside the kernels
//! of its users. Stored pointwise values of one shape that do not wait for each other share a kernel. Nothing
//! here depends on the size of a shard, so every shard size runs the same kernels.

mod attention;
mod bindings;
mod columns;
mod epilogue;
mod finish;
mod folded;
mod form;
mod heads;
mod implicit_gemm;
mod reads;
mod regroup;
mod rows;
mod shared;
mod spot;
mod state_layout;
mod store;
mod units;

pub(crate) use self::attention::{AttentionLaunch, Rounded, attention_launches};
pub(crate) use self::columns::{alone, column_groups};
pub(crate) use self::finish::{Finish, finishes};
pub(crate) use self::folded::FoldedProduct;
pub(crate) use self::form::{Digit, Form, Variable};
pub(crate) use self::reads::reads;
pub(crate) use self::regroup::{Group, regrouped};
pub(crate) use self::rows::{RowGroup, row_groups};
pub(crate) use self::spot::{Spot, layered};
pub use self::state_layout::StatePlacement;
pub use self::store::Bucket;
pub(crate) use self::store::{Extent, Place, Store, Stores, in_order};

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::{Snippet, snippets};

use crate::passes::Parts;
use crate::trace::{Graph, Lowering, NodeId};
use crate::values::Lead;

/// The most storage buffers of one kernel: as many as every adapter has.
pub const MAX_BINDINGS: usize = 8;

/// The most steps in which a value is computed again rather than stored.
const MOST_STEPS: usize = 12;

/// The most elementary functions, quotients and roots among these steps.
const MOST_FUNCTIONS: usize = 2;

/// The elements of a sample from which functions are computed again. Fewer elements stay in a cache, and a
/// software adapter takes longer for the function than for reading its result.
const MANY: usize = 1 << 16;

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
    /// The unit sums rows by their ids.
    RowSums,
    /// The unit is attention, or what is computed together of its gradients.
    Attention,
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
    /// The views as which attention writes its results, each with the result that it shows.
    pub written: BTreeMap<NodeId, NodeId>,
}

/// Partitions a simplified graph into units.
pub fn fuse(graph: &Graph, parts: Parts) -> Fusion {
    let lowering: Vec<Lowering> = graph.nodes.iter().map(|n| n.op.lowering()).collect();
    let segment = segments(graph, &lowering);
    let last = segment.iter().max().copied().unwrap_or(0);
    let mut replaces = BTreeMap::new();
    for (&state, &value) in graph.updates.iter().filter(|(_, value)| segment[**value] == last) {
        replaces.entry(value).or_insert(state);
    }
    let mut fuser = Fuser {
        graph,
        last,
        segment,
        lowering,
        stored: BTreeSet::new(),
        loaded: BTreeSet::new(),
        parts,
        replaces,
    };
    fuser.store_what_is_shared();
    fuser.store_where_bindings_run_out();
    if fuser.store_where_kernels_are_deep() {
        fuser.store_where_bindings_run_out();
    }
    let units = fuser.units();
    let Fuser { stored, segment, lowering, parts, .. } = fuser;
    let mut fusion = Fusion { units, stored, segment, lowering, parts, written: BTreeMap::new() };
    fusion.keep_in_registers(graph);
    fusion.fuse_epilogues(graph);
    fusion.read_through_views(graph);
    fusion.write_through_views(graph);
    fusion
}

/// Returns the segment of each node: the number of sums over shards on the longest way to it. Global values
/// that only new states need belong to the last segment, whatever they are made of: only there may a new
/// state take the place of the old one.
fn segments(graph: &Graph, lowering: &[Lowering]) -> Vec<usize> {
    let mut segment = vec![0; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        let before = node.inputs.iter().map(|&i| segment[i]).max().unwrap_or(0);
        segment[id] = before + usize::from(matches!(lowering[id], Lowering::SumShards));
    }
    let last = segment.iter().max().copied().unwrap_or(0);
    let new: BTreeSet<NodeId> = graph.updates.values().copied().collect();
    let outputs: BTreeSet<NodeId> = graph.outputs.iter().map(|output| output.node).collect();
    // Nodes that a value of another segment needs, or an output.
    let mut is_early = vec![false; graph.nodes.len()];
    let mut is_used: Vec<bool> = (0..graph.nodes.len()).map(|id| new.contains(&id)).collect();
    for (id, node) in graph.nodes.iter().enumerate().rev() {
        let is_leaf = matches!(lowering[id], Lowering::Leaf | Lowering::Constant(_) | Lowering::SumShards);
        let is_late = is_used[id]
            && !is_early[id]
            && !is_leaf
            && node.ty.lead == Lead::Global
            && !outputs.contains(&id);
        if is_late {
            segment[id] = last;
        }
        for &input in &node.inputs {
            is_used[input] = true;
            is_early[input] |= !is_late;
        }
    }
    segment
}

struct Fuser<'a> {
    graph: &'a Graph,
    lowering: Vec<Lowering>,
    segment: Vec<usize>,
    /// The last segment.
    last: usize,
    stored: BTreeSet<NodeId>,
    /// The values that other kernels have to load from memory, because their kernel is deep.
    loaded: BTreeSet<NodeId>,
    parts: Parts,
    /// For each value of the last segment that replaces states the first of these states. What earlier
    /// segments compute is stored in a separate buffer until the step commits.
    replaces: BTreeMap<NodeId, usize>,
}

impl Fusion {
    /// Returns the last segment, the only one that changes states.
    pub fn last_segment(&self) -> usize {
        self.segment.iter().max().copied().unwrap_or(0)
    }
}

impl Fuser<'_> {
    /// Returns the node whose elements a view shows.
    fn base(&self, id: NodeId) -> NodeId {
        self.graph.behind(id, |id| self.lowering[id].is_view())
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

    /// Returns whether computing a node anew for each user costs less than storing it: a few steps from
    /// values in memory, of which one at most is as large as the node. Then each user reads as much as it
    /// would of the stored value. Nothing is drawn or looked up a second time.
    fn is_recomputed(&self, id: NodeId) -> bool {
        let ty = &self.graph.nodes[id].ty;
        let is_large = |source: NodeId| {
            let own = &self.graph.nodes[source].ty;
            own.lead == ty.lead && own.count() >= ty.count()
        };
        let (mut steps, mut functions, mut large) = (0, 0, BTreeSet::new());
        let (mut seen, mut pending) = (BTreeSet::from([id]), vec![id]);
        while let Some(at) = pending.pop() {
            steps += 1;
            if steps > MOST_STEPS {
                return false;
            }
            match &self.lowering[at] {
                Lowering::Pointwise(e) => {
                    let known =
                        [snippets::ELEMENTARY, snippets::QUOTIENT, snippets::ROOT, snippets::ROUND_HALF];
                    if !e.snippets.iter().all(|snippet| known.contains(snippet)) || !e.whole.is_empty() {
                        return false;
                    }
                    let is_function = |snippet: &Snippet| *snippet != snippets::ROUND_HALF;
                    functions += usize::from(e.snippets.iter().any(is_function));
                }
                Lowering::Im2Col { .. } => {}
                _ => return false,
            }
            for &input in &self.graph.nodes[at].inputs {
                let source = self.source(input);
                let is_value = self.stored.contains(&source) || self.lowering[source].is_given();
                if is_value && is_large(source) {
                    large.insert(source);
                } else if !is_value && !matches!(self.lowering[source], Lowering::Constant(_)) {
                    // What is moved or repeated may be computed more than once for an element.
                    let own = &self.graph.nodes[source].ty;
                    if (own.lead, own.count()) != (ty.lead, ty.count()) {
                        return false;
                    }
                    if seen.insert(source) {
                        pending.push(source);
                    }
                }
            }
        }
        large.len() <= 1 && (functions == 0 || functions <= MOST_FUNCTIONS && ty.count() >= MANY)
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
                Lowering::RowSums { .. } | Lowering::Attention { .. } => {
                    node.inputs.iter().for_each(|&i| self.store_in_order(i));
                    if matches!(self.lowering[id], Lowering::Attention { .. }) {
                        node.inputs.iter().for_each(|&i| self.store_under_views(i));
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
            if self.is_inside(id) || matches!(self.lowering[id], Lowering::Leaf | Lowering::Constant(_)) {
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
            let again = self.is_cheap(id)
                || self.is_moved(id)
                || users.len() == 2 && self.is_light(id)
                || self.is_recomputed(id);
            if self.is_pointwise(id) && !again {
                self.stored.insert(id);
            }
        }
    }

    /// Returns the same as [`Fuser::base`], but a view that is stored is read itself.
    fn source(&self, id: NodeId) -> NodeId {
        self.graph.behind(id, |id| self.is_inside(id))
    }

    /// Returns whether a node is a view that is part of its users' kernels, as one that is not stored is.
    fn is_inside(&self, id: NodeId) -> bool {
        self.lowering[id].is_view() && !self.stored.contains(&id)
    }

    /// Stores a value in the row-major order of its own axes. A reshape needs nothing for it; other views are
    /// copied.
    fn store_in_order(&mut self, id: NodeId) {
        let id = self.graph.behind(id, |id| self.lowering[id].is_reshape());
        if !self.lowering[id].is_given() {
            self.stored.insert(id);
        }
    }

    /// Stores what an operand of attention is a view of, so that it can be read there.
    fn store_under_views(&mut self, id: NodeId) {
        let base = self.base(id);
        if self.is_pointwise(base) {
            self.stored.insert(base);
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
}

#[cfg(test)]
mod tests;
