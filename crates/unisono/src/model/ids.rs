//! Finds which elements of a model's input are ids of embedding tables, by following them through ops that
//! only move elements.

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
    let (node, frame) = (&graph.nodes[id], Frame { shards: vec![1] });
    let moves = matches!(node.op.lowering(), Lowering::View(_) | Lowering::Concat(_) | Lowering::Pad(_));
    if id != input && moves {
        let operands: Vec<Array> = node.inputs.iter().map(|&id| places(graph, id, input)).collect();
        return node.op.reference(&operands.iter().collect::<Vec<_>>(), &node.ty, &frame);
    }
    let dims = frame.dims(&node.ty);
    let mut place = 0.0;
    Array::generate(&dims, |_| {
        place += 1.0;
        if id == input { place } else { 0.0 }
    })
}
