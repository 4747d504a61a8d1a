//! Finds which elements of a model's input are ids of embedding tables, by following them through ops that
//! only move elements.

use std::collections::{BTreeMap, BTreeSet};

use unisono_graph::{Array, Frame, Graph, Lowering, NodeId};

/// Returns, for each element of a sample of the input, the number of rows of the smallest table that it is an
/// id of, and `usize::MAX` for elements that are no ids. Returns `None` if no element is an id. `ids` holds
/// each value that is looked up, with the rows of its table.
pub(crate) fn limits(graph: &Graph, input: NodeId, ids: &[(NodeId, usize)]) -> Option<Vec<usize>> {
    let mut limits = vec![usize::MAX; graph.nodes[input].ty.count()];
    for &(id, rows) in ids {
        for place in places(graph, id, input).data {
            // Place 0 stands for elements that are not the input's.
            if let Some(limit) = (place as usize).checked_sub(1).and_then(|place| limits.get_mut(place)) {
                *limit = rows.min(*limit);
            }
        }
    }
    limits.iter().any(|&limit| limit < usize::MAX).then_some(limits)
}

/// Returns, for each element of a node's value for one sample, which element of the input it is, counted from
/// 1, and 0 if it is none.
fn places(graph: &Graph, id: NodeId, input: NodeId) -> Array {
    let frame = Frame { shards: vec![1] };
    let moves = |id: NodeId| {
        let lowering = graph.nodes[id].op.lowering();
        id != input && matches!(lowering, Lowering::View(_) | Lowering::Concat(_) | Lowering::Pad(_))
    };
    let (mut pending, mut needed) = (vec![id], BTreeSet::new());
    while let Some(at) = pending.pop() {
        if needed.insert(at) && moves(at) {
            pending.extend(&graph.nodes[at].inputs);
        }
    }
    let mut known: BTreeMap<NodeId, Array> = BTreeMap::new();
    for at in needed {
        let node = &graph.nodes[at];
        let places = if moves(at) {
            let operands: Vec<&Array> = node.inputs.iter().filter_map(|id| known.get(id)).collect();
            node.op.reference(&operands, &node.ty, &frame)
        } else {
            let mut place = 0.0;
            Array::generate(&frame.dims(&node.ty), |_| {
                place += 1.0;
                if at == input { place } else { 0.0 }
            })
        };
        known.insert(at, places);
    }
    known.remove(&id).unwrap_or_else(|| Array::scalar(0.0))
}
