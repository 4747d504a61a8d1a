//! Which values of a graph are numbers that f16 holds.

use crate::graph::Node;
use crate::half::round_half;
use crate::op::{Halves, Lowering, ReduceKind};
use crate::tree::SUM_CHUNK;
use crate::types::DType;

/// Whether a node's values are, by its op and by which of the nodes before it are.
pub(crate) fn is_half(nodes: &[Node], node: &Node, known: &[bool]) -> bool {
    let operand = |at: usize| known[node.inputs[at]];
    node.ty.dtype == DType::F32
        && match node.op.lowering() {
            Lowering::Constant(c) => is_held(c),
            Lowering::Pointwise(e) => match e.halves {
                Halves::Never => false,
                Halves::Keeps => node.inputs.iter().all(|&input| known[input]),
                Halves::Makes => true,
            },
            Lowering::View(_) | Lowering::Pad(_) | Lowering::Unwindow { .. } => operand(0),
            Lowering::Take | Lowering::Embed => operand(0),
            Lowering::Rewindow { fill, .. } => operand(0) && is_held(fill),
            // A longer one passes through chunks, which are f32.
            Lowering::Reduce(r) => {
                let reduced = nodes[node.inputs[0]].ty.count() / node.ty.count().max(1);
                r.kind == ReduceKind::Max && reduced <= SUM_CHUNK && operand(0)
            }
            Lowering::MatMul { .. } | Lowering::Contract | Lowering::SumShards | Lowering::Leaf => false,
        }
}

/// Whether rounding commutes with what a node does to its one operand: it moves elements, with numbers around them that f16
/// holds.
pub(crate) fn only_moves(lowering: &Lowering) -> bool {
    match lowering {
        Lowering::View(_) | Lowering::Pad(_) | Lowering::Unwindow { .. } => true,
        Lowering::Rewindow { fill, .. } => is_held(*fill),
        _ => false,
    }
}

fn is_held(x: f32) -> bool {
    round_half(x).to_bits() == x.to_bits()
}
