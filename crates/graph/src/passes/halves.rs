//! Finds the values of a graph that are numbers that f16 holds, and the kernels that round to f16.

use std::sync::Arc;

use super::simplify::drop_dead;
use crate::ops::{MatMul, MatMulHalf, RoundHalf};
use crate::trace::{Graph, Halves, Lowering, Node, Op, ReduceKind};
use crate::values::DType;
use crate::values::half::round_half;
use crate::values::tree::SUM_CHUNK;

/// Returns whether the values of a node are such numbers, given which of the nodes before it are.
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
            Lowering::View(_) | Lowering::Pad(_) | Lowering::Col2Im { .. } => operand(0),
            Lowering::Take | Lowering::Embed => operand(0),
            Lowering::Im2Col { fill, .. } => operand(0) && is_held(fill),
            // A longer one passes through chunks, which are f32.
            Lowering::Reduce(r) => {
                let reduced = nodes[node.inputs[0]].ty.count() / node.ty.count().max(1);
                r.kind == ReduceKind::Max && reduced <= SUM_CHUNK && operand(0)
            }
            Lowering::Concat(_) => node.inputs.iter().all(|&input| known[input]),
            Lowering::MatMul { rounds, .. } => rounds,
            Lowering::Attention { .. } => false,
            Lowering::Contract | Lowering::RowSums { .. } | Lowering::SumShards | Lowering::Leaf => false,
        }
}

/// Returns whether rounding commutes with a node of one operand. It does if the node moves elements, and pads
/// them only with numbers that f16 holds.
pub(crate) fn only_moves(lowering: &Lowering) -> bool {
    match lowering {
        Lowering::View(_) | Lowering::Pad(_) | Lowering::Col2Im { .. } => true,
        Lowering::Im2Col { fill, .. } => is_held(*fill),
        _ => false,
    }
}

/// Returns for each node of a graph whether its values are numbers that f16 holds.
pub(crate) fn halves(graph: &Graph) -> Vec<bool> {
    let mut known = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        known.push(is_half(&graph.nodes, node, &known));
    }
    known
}

/// Returns the graph with products rounded in their own kernels. A product is if only a rounding needs it and
/// one kernel computes all of it.
pub(crate) fn round_products(graph: Graph) -> Graph {
    let mut uses = vec![0usize; graph.nodes.len()];
    let operands = graph.nodes.iter().flat_map(|node| node.inputs.iter().copied());
    operands.chain(graph.roots()).for_each(|id| uses[id] += 1);
    let rounded = |node: &Node| {
        let product = &graph.nodes[*node.inputs.first()?];
        let Lowering::MatMul { transpose_a, transpose_b, .. } = product.op.lowering() else { return None };
        let op = MatMulHalf(MatMul { transpose_a, transpose_b });
        let types: Vec<_> = product.inputs.iter().map(|&id| &graph.nodes[id].ty).collect();
        let fits = node.op.is::<RoundHalf>() && uses[node.inputs[0]] == 1 && op.infer(&types).is_ok();
        fits.then(|| Node { op: Arc::new(op), ..product.clone() })
    };
    let nodes: Vec<Node> =
        graph.nodes.iter().map(|node| rounded(node).unwrap_or_else(|| node.clone())).collect();
    drop_dead(&Graph { nodes, ..graph })
}

fn is_held(x: f32) -> bool {
    round_half(x).to_bits() == x.to_bits()
}
