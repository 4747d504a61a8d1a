//! Which elements of a model's input are ids, and of tables of how many rows: followed through everything that only moves
//! elements.

use unisono_graph::{Array, Frame, Graph, Lowering, NodeId};

/// Of each element of an input's sample the rows of the smallest table that it is an id of; `usize::MAX` for those of none.
/// `None` where no element is an id.
pub(crate) fn limits(graph: &Graph, input: NodeId, ids: &[(NodeId, usize)]) -> Option<Vec<usize>> {
    let mut limits = vec![usize::MAX; graph.nodes[input].ty.count()];
    for &(id, rows) in ids {
        for place in places(graph, id, input).data {
            // 0 is none of the input's.
            if let Some(limit) = (place as usize).checked_sub(1).and_then(|place| limits.get_mut(place)) {
                *limit = rows.min(*limit);
            }
        }
    }
    limits.iter().any(|&limit| limit < usize::MAX).then_some(limits)
}

/// For each element of a value of one sample, which element of the input's it is, counted from 1; 0 where it is none.
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
