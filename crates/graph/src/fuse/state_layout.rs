//! Places for the tensors of the state: those that an optimizer updates in the same way lie one behind the
//! other, as their gradients do in a bucket. Then one launch can update all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Bucket, Fusion, UnitKind, in_order};
use crate::plan::{Slice, StateLayout};
use crate::trace::{Graph, Lowering, NodeId};

/// Where a program's tensors of the state lie.
#[derive(Clone, Copy, Debug)]
pub enum StatePlacement<'a> {
    /// Each tensor has a buffer of its own. Programs that are compiled like this can share a device.
    Apart,
    /// Tensors share buffers by what updates them, so that one launch updates many parameters. The other
    /// programs on the same device must be compiled with [`StatePlacement::Like`].
    ByUpdate,
    /// The tensors are the first ones of another program, and lie where they lie there.
    Like(&'a StateLayout),
}

/// Returns the layout in which each tensor has a buffer of its own.
pub(super) fn apart(graph: &Graph) -> StateLayout {
    StateLayout::apart(graph.states.iter().map(|state| 4 * state.ty.count().max(1) as u64))
}

/// Returns the layout in which the tensors that a map computes from a gradient lie as the gradient does in
/// its bucket: the first one of these tensors (the parameter) in the first buffer of the bucket, the second
/// one (such as its momentum) in the second, and so on. All other tensors have buffers of their own.
pub(super) fn by_update(graph: &Graph, fusion: &Fusion, buckets: &[Bucket]) -> StateLayout {
    let gradients = gradients(graph, fusion, buckets);
    let mut layout = StateLayout::default();
    let mut buffer_of: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut states_of: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (index, state) in graph.states.iter().enumerate() {
        let bytes = 4 * state.ty.count().max(1) as u64;
        let Some(&(bucket, first)) = gradients.get(&index) else {
            layout.tensors.push(Slice { buffer: layout.buffers.len(), offset: 0, bytes });
            layout.buffers.push(bytes);
            continue;
        };
        let rank = states_of.entry((bucket, first)).or_insert(0);
        let buffer = *buffer_of.entry((bucket, *rank)).or_insert_with(|| {
            layout.buffers.push(4 * buckets[bucket].len as u64);
            layout.buffers.len() - 1
        });
        *rank += 1;
        layout.tensors.push(Slice { buffer, offset: 4 * first as u64, bytes });
    }
    layout
}

/// Returns for each state the bucket of its gradient and the gradient's first element there, if a map of the
/// last segment computes the new value element by element from one gradient.
fn gradients(graph: &Graph, fusion: &Fusion, buckets: &[Bucket]) -> BTreeMap<usize, (usize, usize)> {
    let last = fusion.last_segment();
    let places: BTreeMap<NodeId, (usize, usize)> = buckets
        .iter()
        .enumerate()
        .flat_map(|(bucket, own)| own.values.iter().map(move |&(id, first)| (id, (bucket, first))))
        .collect();
    let maps = fusion.units.iter().filter(|unit| unit.kind == UnitKind::Map && unit.segment == last);
    let unit_of: BTreeMap<NodeId, usize> =
        maps.enumerate().flat_map(|(at, unit)| unit.roots.iter().map(move |&root| (root, at))).collect();
    let mut found = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (&state, &value) in &graph.updates {
        let root = in_order(graph, fusion, value);
        if !unit_of.contains_key(&root) || !taken.insert(root) {
            continue;
        }
        let count = graph.states[state].ty.count();
        let of_size = |id: &NodeId| count > 1 && graph.nodes[*id].ty.count() == count;
        let sums = aligned_sums(graph, fusion, &unit_of, root);
        if let [gradient] = sums.into_iter().filter(of_size).collect::<Vec<_>>()[..]
            && let Some(&place) = places.get(&gradient)
        {
            found.insert(state, place);
        }
    }
    found
}

/// Returns the sums over shards of which a map's value needs the element that it computes, through the other
/// values of the same map too.
fn aligned_sums(
    graph: &Graph,
    fusion: &Fusion,
    unit_of: &BTreeMap<NodeId, usize>,
    root: NodeId,
) -> BTreeSet<NodeId> {
    let (mut sums, mut seen, mut pending) = (BTreeSet::new(), BTreeSet::new(), vec![root]);
    while let Some(value) = pending.pop() {
        if !seen.insert(value) {
            continue;
        }
        for (id, is_aligned) in fusion.reads(graph, value) {
            if !is_aligned {
                continue;
            }
            if matches!(fusion.lowering[id], Lowering::SumShards) {
                sums.insert(id);
            } else if unit_of.get(&id).is_some() && unit_of.get(&id) == unit_of.get(&root) {
                pending.push(id);
            }
        }
    }
    sums
}
