//! The memory and the place of each value. Sizes depend on the run and are not known here.

use std::collections::{BTreeMap, BTreeSet};

use super::state_layout::{apart, by_update};
use crate::fuse::{Fusion, MAX_BINDINGS, StatePlacement, Unit, UnitKind};
use crate::passes::{Runs, halves};
use crate::plan::StateLayout;
use crate::trace::{Graph, Input, InputKind, Lowering, NodeId, OutputKind, State};
use crate::values::{Lead, Type};

/// A piece of memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Store {
    /// All scalar inputs in their order.
    Scalars,
    /// Input `.0`.
    Input(usize),
    /// Buffer `.0` of the state.
    State(usize),
    /// Resident memory `.0`: rows of samples that stay on the device.
    Resident(usize),
    /// The stored value of a node.
    Value(NodeId),
    /// The same where it was computed a second time.
    Again(NodeId),
    /// The results of the chunks of a reduction or product, which a tree adds. Where the tree takes several
    /// passes, it is also the results of every second one.
    Temp(NodeId),
    /// The results of the other passes of such a tree.
    Temp2(NodeId),
    /// The right operand of products in panels of columns, and the time at which it is copied.
    Packed(NodeId, usize),
    /// `[shards, len - joined]`: each shard's part of a bucket, without what products join themselves.
    Partial(usize),
    /// A product that is summed over shards as it is computed. Its place is its first element in the bucket.
    Joined(usize),
    /// `[shards, ...]`: a joined product whose inner axis is so long that the product of each shard is a tree
    /// of its own.
    Apart(NodeId),
    /// `[shards, joined]`: each shard's part of the products of bucket `.0` that a GPU adds up afterwards.
    ApartOf(usize),
    /// `[blocks, len]`: a bucket summed over the subtrees that lie in the run.
    Blocks(usize),
    /// `[len]`: a bucket summed over all shards.
    Sums(usize),
    /// For each cut one word that says whether a sum is not finite, and one more for outputs.
    Flags,
    /// One word that says whether a new value of a state is not finite.
    StateFlag,
    /// One word that is not 0 if the step changes nothing.
    Commit,
    /// One word that is not 0 if an earlier step is in flight.
    Chained,
    /// The first row of each shard of the run, and the end of the last one.
    ShardStarts,
    /// Table `.0` of constants.
    Table(usize),
}

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory that holds the value.
    pub store: Store,
    /// The value's first element in it.
    pub inside: usize,
    /// The runs in which the elements lie, or `None` if all of them lie one behind the other.
    pub runs: Option<Runs>,
}

impl Place {
    /// Returns the place of a value whose elements lie one behind the other from the start of a memory.
    pub fn start(store: Store) -> Self {
        Self { store, inside: 0, runs: None }
    }

    /// Returns the distance from one sample to the next, in elements, of a value of `count` elements a
    /// sample.
    pub fn row(&self, count: usize) -> usize {
        self.runs.map_or(count, |runs| count / runs.len * runs.stride)
    }
}

/// Sums over shards that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The cut at which the bucket is exchanged, which is the number of the segment before it.
    pub cut: usize,
    /// The summed values: each `sum_shards` node and its first element in the bucket.
    pub values: Vec<(NodeId, usize)>,
    /// The number of elements, a multiple of 4, so that kernels may take four at a time.
    pub len: usize,
    /// The number of elements at the start that products sum over shards as they compute them, a multiple of
    /// 4.
    pub joined: usize,
    /// The number of elements before the padding. Those after them are 0 in every sum.
    pub used: usize,
}

/// The places of all values.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    places: BTreeMap<NodeId, Place>,
    /// The inputs that are scalars, in order.
    pub scalars: Vec<usize>,
    /// The buckets in the order of their cuts.
    pub buckets: Vec<Bucket>,
    /// Where the tensors of the state lie.
    pub states: StateLayout,
    /// The states whose new value is computed in place, with that value.
    pub in_place: BTreeMap<usize, NodeId>,
    /// The new values of states that the kernel which computes them checks for numbers that are not finite.
    pub checked: BTreeSet<NodeId>,
    /// The new values of states that are computed in place by a kernel which does nothing in a step that does
    /// not commit.
    pub guarded: BTreeSet<NodeId>,
    /// The values that are stored as f16. They are numbers that f16 holds, so no bit depends on it.
    pub halves: BTreeSet<NodeId>,
}

impl Stores {
    /// Returns the place of a value. Views of the same order share the place of their operand.
    pub fn place(&self, id: NodeId) -> Place {
        self.places.get(&id).copied().unwrap_or(Place::start(Store::Value(id)))
    }

    /// Returns whether a value has a memory of its own.
    pub fn lies_alone(&self, id: NodeId) -> bool {
        self.place(id) == Place::start(Store::Value(id))
    }

    /// Returns the places with these values in memories of their own.
    pub fn with_alone(&self, values: &BTreeSet<NodeId>) -> Self {
        let mut stores = self.clone();
        stores.places.retain(|id, _| !values.contains(id));
        stores
    }

    /// Returns whether a memory holds f16.
    pub fn is_half(&self, store: Store) -> bool {
        matches!(store, Store::Value(id) if self.halves.contains(&id))
    }

    /// Returns the bytes of each element of a memory.
    pub fn element_bytes(&self, store: Store) -> usize {
        if self.is_half(store) { 2 } else { 4 }
    }

    /// Stores as f16 the values that f16 holds, except outputs and new values of states, which leave as f32.
    pub fn narrow(&mut self, graph: &Graph, fusion: &Fusion) {
        let leave: BTreeSet<NodeId> = graph.roots().map(|id| in_order(graph, fusion, id)).collect();
        let known = halves(graph);
        let own = |id: &NodeId| known[*id] && !leave.contains(id) && self.lies_alone(*id);
        self.halves = fusion.stored.iter().copied().filter(own).collect();
    }

    /// Gives every value a place. A bucket holds up to `bucket_len` elements; a larger value has one of its
    /// own.
    pub fn assign(graph: &Graph, fusion: &Fusion, bucket_len: usize, states: StatePlacement<'_>) -> Self {
        let scalars = (0..graph.inputs.len())
            .filter(|&i| graph.inputs[i].ty == Type::global(&[]) && graph.inputs[i].kind != InputKind::Random)
            .collect();
        let mut stores = Self { scalars, ..Self::default() };
        let scalars: BTreeMap<usize, usize> = stores.scalars.iter().copied().zip(0..).collect();
        for (id, node) in graph.nodes.iter().enumerate() {
            if let Some(&Input(index)) = node.op.downcast_ref() {
                let place = match (scalars.get(&index), graph.inputs[index].kind) {
                    (Some(&inside), _) => Place { inside, ..Place::start(Store::Scalars) },
                    (None, InputKind::Resident(number)) => stores.resident(number),
                    (None, _) => Place::start(Store::Input(index)),
                };
                stores.places.insert(id, place);
            }
        }
        for (&id, part) in &fusion.parts {
            let place = Place { store: Store::Value(part.whole), inside: part.inside, runs: Some(part.runs) };
            stores.places.insert(id, place);
        }
        stores.fill_buckets(graph, fusion, bucket_len);
        stores.place_states(graph, fusion, states);
        stores.update_in_place(graph, fusion);
        stores.keep_in_place(graph, fusion);
        for (id, node) in graph.nodes.iter().enumerate() {
            if fusion.is_alias(id) {
                let place = stores.place(node.inputs[0]);
                stores.places.insert(id, place);
            }
        }
        stores.check_where_computed(graph, fusion);
        stores
    }

    fn place_states(&mut self, graph: &Graph, fusion: &Fusion, placement: StatePlacement<'_>) {
        self.states = match placement {
            StatePlacement::Apart => apart(graph),
            StatePlacement::ByUpdate => by_update(graph, fusion, &self.buckets),
            StatePlacement::Like(layout) => layout.clone(),
        };
        for (id, node) in graph.nodes.iter().enumerate() {
            if let Some(&State(index)) = node.op.downcast_ref() {
                self.places.insert(id, self.state(index));
            }
        }
    }

    /// Returns the place of a tensor of the state.
    pub fn state(&self, index: usize) -> Place {
        let slice = &self.states.tensors[index];
        Place { store: Store::State(slice.buffer), inside: slice.offset as usize / 4, runs: None }
    }

    fn fill_buckets(&mut self, graph: &Graph, fusion: &Fusion, bucket_len: usize) {
        let mut sums: Vec<NodeId> =
            (0..graph.nodes.len()).filter(|&id| matches!(fusion.lowering[id], Lowering::SumShards)).collect();
        let source = |id: NodeId| in_order(graph, fusion, graph.nodes[id].inputs[0]);
        let joined = joined(graph, fusion, &sums);
        let joins = |id: NodeId| joined.contains(&id);
        // Joined ones first, then multiples of eight and of four: all of these start at one.
        let rest = |count: usize, of: usize| !count.is_multiple_of(of);
        sums.sort_by_key(|&id| {
            let count = graph.nodes[id].ty.count();
            (!joins(id), rest(count, 8), rest(count, 4))
        });
        let mut of_cut: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &id in &sums {
            let (cut, count) = (fusion.segment[id] - 1, graph.nodes[id].ty.count());
            let own = of_cut.entry(cut).or_default();
            let open = own.iter().copied().rfind(|&b| self.buckets[b].len + count <= bucket_len);
            let bucket = open.unwrap_or_else(|| {
                self.buckets.push(Bucket { cut, values: vec![], len: 0, joined: 0, used: 0 });
                own.push(self.buckets.len() - 1);
                self.buckets.len() - 1
            });
            let inside = self.buckets[bucket].len;
            self.buckets[bucket].values.push((id, inside));
            self.buckets[bucket].len += count;
            if joins(id) {
                self.buckets[bucket].joined += count;
            }
            self.places.insert(id, Place { store: Store::Sums(bucket), inside, runs: None });
        }
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.used = bucket.len;
            bucket.len = bucket.len.next_multiple_of(8);
            for &(id, inside) in &bucket.values {
                let place = if inside < bucket.joined {
                    Place { store: Store::Joined(index), inside, runs: None }
                } else {
                    let len = graph.nodes[id].ty.count();
                    let runs = Runs { len, stride: bucket.len - bucket.joined };
                    Place { store: Store::Partial(index), inside: inside - bucket.joined, runs: Some(runs) }
                };
                self.places.insert(source(id), place);
            }
        }
    }

    /// Gives the new value of a state the place of the old one, if every kernel that needs the old one is
    /// done by then or reads only the element that it replaces.
    fn update_in_place(&mut self, graph: &Graph, fusion: &Fusion) {
        let last = fusion.last_segment();
        let mut made_by: BTreeMap<NodeId, usize> = BTreeMap::new();
        // For each state the units that read it, and whether each reads only the element that it computes.
        let mut readers: BTreeMap<usize, BTreeMap<usize, bool>> = BTreeMap::new();
        for (at, unit) in fusion.units.iter().enumerate() {
            for &root in &unit.roots {
                made_by.entry(root).or_insert(at);
                for (id, aligned) in fusion.reads(graph, root) {
                    if let Some(&State(state)) = graph.nodes[id].op.downcast_ref() {
                        let known = readers.entry(state).or_default().entry(at).or_insert(true);
                        *known = *known && aligned;
                    }
                }
            }
        }
        let mut taken = BTreeSet::new();
        for (&state, &value) in &graph.updates {
            let unit = made_by.get(&value).copied();
            let Some(unit) =
                unit.filter(|&u| fusion.units[u].kind == UnitKind::Map && fusion.units[u].segment == last)
            else {
                continue;
            };
            let mut late = readers.get(&state).into_iter().flat_map(|readers| readers.range(unit..));
            let safe = late.all(|(&reader, &aligned)| reader == unit && aligned);
            if safe && taken.insert(value) {
                self.places.insert(value, self.state(state));
                self.in_place.insert(state, value);
            }
        }
    }

    /// Gives the new rows of a resident memory the place of the old ones, under the conditions of
    /// [`Stores::update_in_place`].
    fn keep_in_place(&mut self, graph: &Graph, fusion: &Fusion) {
        let last = fusion.last_segment();
        let mut taken: BTreeSet<NodeId> = self.in_place.values().copied().collect();
        for output in &graph.outputs {
            let OutputKind::Resident(number) = output.kind else { continue };
            let value = in_order(graph, fusion, output.node);
            let is_made = |unit: &Unit| {
                unit.kind == UnitKind::Map && unit.segment == last && unit.roots.contains(&value)
            };
            let Some(unit) = fusion.units.iter().position(is_made) else { continue };
            let is_old = |id: &NodeId| {
                let index = graph.nodes[*id].op.downcast_ref().map(|&Input(index)| index);
                index.is_some_and(|index| graph.inputs[index].kind == InputKind::Resident(number))
            };
            let is_safe = |&root: &NodeId| {
                let old = fusion.reads(graph, root).into_iter().filter(|(id, _)| is_old(id));
                old.into_iter().all(|(_, is_aligned)| is_aligned)
            };
            let mut late = fusion.units.iter().enumerate().skip(unit);
            let is_safe = late.all(|(at, reader)| {
                let reads = || reader.roots.iter().any(|&root| fusion.reads(graph, root).keys().any(is_old));
                if at == unit { reader.roots.iter().all(is_safe) } else { !reads() }
            });
            if is_safe && self.lies_alone(value) && taken.insert(value) {
                self.places.insert(value, self.resident(number));
            }
        }
    }

    /// Returns the place of a resident memory.
    pub fn resident(&self, number: usize) -> Place {
        Place::start(Store::Resident(number))
    }

    /// Has the maps of the last segment check the new values of states that they store, and store nothing in
    /// a step that does not commit. A map with as many buffers as a kernel may have has none left for the
    /// flag, and does not check; with one less it has none left for the word that says whether to store.
    fn check_where_computed(&mut self, graph: &Graph, fusion: &Fusion) {
        let last = fusion.last_segment();
        let new = fusion.new_states(graph);
        for unit in fusion.units.iter().filter(|u| u.kind == UnitKind::Map && u.segment == last) {
            let values = unit.roots.iter().flat_map(|&root| fusion.reads(graph, root).into_keys());
            let buffers: BTreeSet<Store> =
                values.chain(unit.roots.iter().copied()).map(|id| self.place(id).store).collect();
            let stored = || unit.roots.iter().filter(|root| new.contains(root));
            if buffers.len() < MAX_BINDINGS {
                self.checked.extend(stored());
            }
            if buffers.len() + 1 < MAX_BINDINGS {
                let in_place = |root: &&NodeId| matches!(self.place(**root).store, Store::State(_));
                let guarded: Vec<NodeId> = stored().filter(in_place).copied().collect();
                self.guarded.extend(guarded);
            }
        }
    }
}

/// Returns the products and row sums over samples that only a sum over shards needs.
fn joined(graph: &Graph, fusion: &Fusion, sums: &[NodeId]) -> BTreeSet<NodeId> {
    let source: Vec<NodeId> = sources(graph, fusion);
    let is_over_samples = |id: NodeId| {
        let sums = matches!(fusion.lowering[id], Lowering::Contract | Lowering::RowSums { .. });
        sums && graph.nodes[id].ty.lead == Lead::Shard
    };
    // Views of the same memory are not users of it.
    let mut users: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            let own = source[input];
            if is_over_samples(own) && source[id] != own {
                users.entry(own).or_default().insert(id);
            }
        }
    }
    let shown: BTreeSet<NodeId> = graph.outputs.iter().map(|output| source[output.node]).collect();
    let is_joined = |sum: &NodeId| {
        let value = source[graph.nodes[*sum].inputs[0]];
        is_over_samples(value)
            && graph.nodes[value].ty.count().is_multiple_of(4)
            && !shown.contains(&value)
            && users.get(&value).is_none_or(|users| users.iter().eq([sum]))
    };
    sums.iter().copied().filter(is_joined).collect()
}

/// Returns for each node what [`in_order`] does.
fn sources(graph: &Graph, fusion: &Fusion) -> Vec<NodeId> {
    let mut sources: Vec<NodeId> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        sources.push(if fusion.is_alias(id) { sources[node.inputs[0]] } else { id });
    }
    sources
}

/// Returns the node whose storage holds a value in row-major order. Reshapes share it.
pub fn in_order(graph: &Graph, fusion: &Fusion, id: NodeId) -> NodeId {
    graph.behind(id, |id| fusion.is_alias(id))
}

impl Fusion {
    /// Returns whether a value lies in the memory of its operand: it is a reshape that is not stored itself.
    fn is_alias(&self, id: NodeId) -> bool {
        self.lowering[id].is_reshape() && !self.stored.contains(&id)
    }
}

/// What the sizes of values depend on: the rows, shards and blocks of a run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The number of samples.
    pub rows: usize,
    /// The number of shards.
    pub shards: usize,
    /// The number of subtrees of the sum over shards that lie in the run.
    pub blocks: usize,
}

impl Extent {
    /// Returns the number of elements of a value.
    pub fn count(&self, ty: &Type) -> usize {
        let lead = match ty.lead {
            Lead::Global => 1,
            Lead::Shard => self.shards,
            Lead::Sample => self.rows,
        };
        lead * ty.count()
    }
}
