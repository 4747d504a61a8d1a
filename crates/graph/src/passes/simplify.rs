//! Simplification: the same values from fewer nodes. It is pure and the same for every replica, so it may
//! change last bits.
//!
//! There is one pass over the graph in order. Each node is rebuilt on its simplified operands, then the rules
//! of [`Rebuilt::rewrite`] are tried, then a node equal to one that is already there is replaced by it. At
//! the end, nodes that nothing needs are dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::halves::{is_half, only_moves};
use crate::ops;
use crate::trace::{Graph, Input, InputKind, Key, Lowering, Node, NodeId, Op, View};
use crate::values::DType;
use crate::values::half::round_half;

/// Returns a simplified graph of the same meaning.
pub fn simplify(graph: &Graph) -> Graph {
    let live = graph.live();
    let mut new = Rebuilt::default();
    let mut moved: Vec<NodeId> = vec![0; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate().filter(|(id, _)| live[*id]) {
        let inputs = node.inputs.iter().map(|&i| moved[i]).collect();
        moved[id] = new.add(Node { inputs, ..node.clone() });
    }
    let mut result = graph.with_nodes(new.nodes);
    result.move_roots(&moved);
    drop_dead(&result)
}

/// Returns the graph without the nodes that no output or update needs.
pub(crate) fn drop_dead(graph: &Graph) -> Graph {
    let live = graph.live();
    let mut moved = vec![0; graph.nodes.len()];
    let mut nodes: Vec<Node> = Vec::new();
    for (id, node) in graph.nodes.iter().enumerate().filter(|(id, _)| live[*id]) {
        moved[id] = nodes.len();
        nodes.push(Node { inputs: node.inputs.iter().map(|&i| moved[i]).collect(), ..node.clone() });
    }
    let mut result = graph.with_nodes(nodes);
    result.move_roots(&moved);
    result
}

/// Returns the graph without the inputs of [`InputKind::Data`] that no output or update needs, so that
/// nobody has to bring them.
pub fn drop_unread_inputs(graph: &Graph) -> Graph {
    let mut result = drop_dead(graph);
    let read: BTreeSet<usize> = result.nodes.iter().filter_map(input_of).collect();
    let is_kept = |at: usize| read.contains(&at) || graph.inputs[at].kind != InputKind::Data;
    let kept: Vec<usize> = (0..graph.inputs.len()).filter(|&at| is_kept(at)).collect();
    result.inputs = kept.iter().map(|&at| graph.inputs[at].clone()).collect();
    for node in &mut result.nodes {
        if let Some(place) = input_of(node).and_then(|at| kept.iter().position(|&own| own == at)) {
            node.op = Arc::new(Input(place));
        }
    }
    result
}

/// Returns the number of the input that a node stands for, if it stands for one.
fn input_of(node: &Node) -> Option<usize> {
    node.op.downcast_ref::<Input>().map(|input| input.0)
}

#[derive(Default)]
struct Rebuilt {
    nodes: Vec<Node>,
    /// Which nodes are numbers that f16 holds.
    halves: Vec<bool>,
    /// The nodes by operands and op. Operands come first because they are told apart fastest.
    known: BTreeMap<(Vec<NodeId>, Key), NodeId>,
}

impl Rebuilt {
    fn add(&mut self, node: Node) -> NodeId {
        match self.rewrite(&node) {
            Some(id) => id,
            None => self.merge(node),
        }
    }

    /// Adds a node unless there is one that is equal to it.
    fn merge(&mut self, node: Node) -> NodeId {
        let key = node.op.key().map(|op| (node.inputs.clone(), op));
        if let Some(&id) = key.as_ref().and_then(|key| self.known.get(key)) {
            return id;
        }
        self.halves.push(is_half(&self.nodes, &node, &self.halves));
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.known.extend(key.map(|key| (key, id)));
        id
    }

    /// Adds a node with the type and layer of `like`.
    fn make(&mut self, op: impl Op, inputs: &[NodeId], like: &Node) -> NodeId {
        self.add(Node { op: Arc::new(op), inputs: inputs.to_vec(), ..like.clone() })
    }

    /// Applies the rules: to our own ops by their types, to every other op by what it lowers to. Returns the
    /// node that stands for this one, if a rule applies.
    fn rewrite(&mut self, node: &Node) -> Option<NodeId> {
        let op = &*node.op;
        if op.is::<ops::Mul>() {
            self.rewrite_product(node)
        } else if op.is::<ops::Div>() {
            (self.constant(node.inputs[1]) == Some(1.0)).then_some(node.inputs[0])
        } else if op.is::<ops::Add>() {
            self.rewrite_sum(node)
        } else if op.is::<ops::Sub>() {
            self.rewrite_difference(node)
        } else if op.is::<ops::Neg>() {
            self.rewrite_negation(node)
        } else if op.is::<ops::RoundHalf>() {
            self.rewrite_rounding(node)
        } else if op.is::<ops::SumShards>() {
            self.rewrite_sum_of_shards(node)
        } else {
            self.rewrite_view(node)
        }
    }

    /// x * 1 = x, c * d = cd.
    fn rewrite_product(&mut self, node: &Node) -> Option<NodeId> {
        let x = &node.inputs;
        match (self.constant(x[0]), self.constant(x[1])) {
            (Some(a), Some(b)) => Some(self.number(a * b, node)),
            (Some(1.0), _) => Some(x[1]),
            (_, Some(1.0)) => Some(x[0]),
            _ => None,
        }
    }

    /// A sum meets products only through fma (a b + c, c + a b). x + -y = x - y, x + 0 = x.
    fn rewrite_sum(&mut self, node: &Node) -> Option<NodeId> {
        let x = &node.inputs;
        match (self.product(x[0]), self.product(x[1])) {
            (Some([a, b]), _) => return Some(self.make(ops::Fma, &[a, b, x[1]], node)),
            (_, Some([a, b])) => return Some(self.make(ops::Fma, &[a, b, x[0]], node)),
            _ => {}
        }
        match (self.negated(x[0]), self.negated(x[1])) {
            (_, Some(b)) => Some(self.make(ops::Sub, &[x[0], b], node)),
            (Some(a), _) => Some(self.make(ops::Sub, &[x[1], a], node)),
            _ if self.constant(x[0]) == Some(0.0) => Some(x[1]),
            _ if self.constant(x[1]) == Some(0.0) => Some(x[0]),
            _ => None,
        }
    }

    /// A difference meets products only through fma (a b - c, c - a b). x - -y = x + y, x - 0 = x.
    fn rewrite_difference(&mut self, node: &Node) -> Option<NodeId> {
        let x = &node.inputs;
        match (self.product(x[0]), self.product(x[1]), self.negated(x[1])) {
            (Some([a, b]), _, _) => {
                let minus = self.make(ops::Neg, &[x[1]], node);
                Some(self.make(ops::Fma, &[a, b, minus], node))
            }
            (_, Some([a, b]), _) => {
                let minus = self.make(ops::Neg, &[a], node);
                Some(self.make(ops::Fma, &[minus, b, x[0]], node))
            }
            (_, _, Some(b)) => Some(self.make(ops::Add, &[x[0], b], node)),
            _ if self.constant(x[1]) == Some(0.0) => Some(x[0]),
            _ => None,
        }
    }

    /// -(-x) = x, and the negative of a number is a number.
    fn rewrite_negation(&mut self, node: &Node) -> Option<NodeId> {
        let x = node.inputs[0];
        match (self.negated(x), self.constant(x)) {
            (Some(inner), _) => Some(inner),
            (_, Some(c)) => Some(self.number(-c, node)),
            _ => None,
        }
    }

    /// A value that is rounded already stays. An op that only moves elements is applied to rounded ones, so
    /// that each is rounded once.
    fn rewrite_rounding(&mut self, node: &Node) -> Option<NodeId> {
        let mut x = node.inputs[0];
        let mut moves: Vec<Node> = Vec::new();
        let mut rounded = loop {
            let like = || Node { inputs: vec![x], ty: self.nodes[x].ty.clone(), ..node.clone() };
            if self.halves[x] {
                break x;
            }
            if let Some(c) = self.constant(x) {
                let like = like();
                break self.number(round_half(c), &like);
            }
            let moved = &self.nodes[x];
            if moved.inputs.len() != 1 || !only_moves(&moved.op.lowering()) {
                if moves.is_empty() {
                    return None;
                }
                let like = like();
                break self.merge(like);
            }
            moves.push(moved.clone());
            x = moved.inputs[0];
        };
        for moved in moves.into_iter().rev() {
            rounded = self.add(Node { inputs: vec![rounded], ..moved });
        }
        Some(rounded)
    }

    /// The sum over shards of a reshape is the reshape of the sum, so that there is one sum of what lies in
    /// one memory.
    fn rewrite_sum_of_shards(&mut self, node: &Node) -> Option<NodeId> {
        let x = node.inputs[0];
        let is_reshape = matches!(view(&self.nodes[x]), Some(View::Reshape));
        let root = is_reshape.then(|| self.nodes[x].inputs[0])?;
        let like = Node { ty: node.ty.with_dims(&self.nodes[root].ty.dims), ..node.clone() };
        let sum = self.make(ops::SumShards, &[root], &like);
        Some(self.make(ops::Reshape { dims: node.ty.dims.clone() }, &[sum], node))
    }

    /// A view of a view is one view; a view that changes nothing is none.
    fn rewrite_view(&mut self, node: &Node) -> Option<NodeId> {
        let view = view(node)?;
        let x = node.inputs[0];
        if self.nodes[x].ty == node.ty && !matches!(view, View::Permute(_) | View::Slice(_)) {
            return Some(x);
        }
        match (view, self::view(&self.nodes[x])) {
            (View::Reshape, Some(View::Reshape)) => {
                let root = self.nodes[x].inputs[0];
                Some(self.make(ops::Reshape { dims: node.ty.dims.clone() }, &[root], node))
            }
            (View::Broadcast, Some(View::Broadcast)) => {
                let root = self.nodes[x].inputs[0];
                let op = ops::Broadcast { lead: node.ty.lead, dims: node.ty.dims.clone() };
                Some(self.make(op, &[root], node))
            }
            (View::Permute(outer), Some(View::Permute(inner))) => {
                let root = self.nodes[x].inputs[0];
                let order: Vec<usize> = outer.iter().map(|&axis| inner[axis]).collect();
                Some(self.make(ops::Permute { order }, &[root], node))
            }
            (View::Permute(order), _) if order.iter().enumerate().all(|(i, &axis)| i == axis) => Some(x),
            (View::Reshape, _) => self.constant(x).map(|c| self.number(c, node)),
            _ => None,
        }
    }

    /// Returns the number that a node is everywhere.
    fn constant(&self, id: NodeId) -> Option<f32> {
        match self.nodes[id].op.lowering() {
            Lowering::Constant(c) => Some(c),
            Lowering::View(View::Broadcast) => self.constant(self.nodes[id].inputs[0]),
            _ => None,
        }
    }

    /// Returns the factors of a product. There is no fma of integers.
    fn product(&self, id: NodeId) -> Option<[NodeId; 2]> {
        let node = &self.nodes[id];
        let is_product = node.op.is::<ops::Mul>() && node.ty.dtype == DType::F32;
        is_product.then(|| [node.inputs[0], node.inputs[1]])
    }

    /// Returns the operand of a negation.
    fn negated(&self, id: NodeId) -> Option<NodeId> {
        let node = &self.nodes[id];
        node.op.is::<ops::Neg>().then(|| node.inputs[0])
    }

    /// Adds a number in the shape of `like`.
    fn number(&mut self, x: f32, like: &Node) -> NodeId {
        let ty = crate::values::Type::global(&[]);
        let scalar = Node {
            op: Arc::new(ops::Constant(x)),
            inputs: vec![],
            ty: ty.clone(),
            scope: like.scope.clone(),
        };
        let id = self.add(scalar);
        if like.ty == ty {
            return id;
        }
        self.make(ops::Broadcast { lead: like.ty.lead, dims: like.ty.dims.clone() }, &[id], like)
    }
}

/// Returns the view that a node is. A checkpoint is none, nor is a saved value: they keep
/// a value apart on purpose.
fn view(node: &Node) -> Option<View> {
    match node.op.lowering() {
        Lowering::View(view) if !node.op.is::<ops::Checkpoint>() && !node.op.is::<ops::Saved>() => Some(view),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tape, Type, Var};

    /// The simplified graph of `f(x, y)` as text, one line a node.
    fn simplified(f: impl Fn(&Var, &Var) -> Var) -> Vec<String> {
        let tape = Tape::new();
        let (x, y) = (tape.input("x", Type::sample(&[4])), tape.input("y", Type::sample(&[4])));
        tape.output("z", &f(&x, &y));
        let graph = simplify(&tape.finish().unwrap());
        let text = graph.to_string();
        text.lines().map(|l| l.split(" : ").next().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn multiplying_by_one_is_nothing() {
        assert_eq!(simplified(|x, _| x * 1.0), ["v0 = input{0}", "output z v0"]);
    }

    #[test]
    fn products_meet_sums_through_fma() {
        let fma = ["v0 = input{0}", "v1 = input{1}", "v2 = fma v0 v0 v1", "output z v2"];
        assert_eq!(simplified(|x, y| x * x + y), fma);
        assert_eq!(simplified(|x, y| y + x * x), fma);
        assert_eq!(simplified(|x, y| y - x * x)[2..], ["v2 = neg v0", "v3 = fma v2 v0 v1", "output z v3"]);
    }

    #[test]
    fn numbers_are_rounded_once_and_before_they_move() {
        assert_eq!(simplified(|x, _| x.round_half().relu().round_half()).len(), 4);
        let moved = simplified(|x, _| x.reshape(&[2, 2]).transpose(1, 2).round_half());
        assert_eq!(moved[1..3], ["v1 = round_half v0", "v2 = reshape{[2, 2]} v1"]);
        assert_eq!(simplified(|x, _| (x + x.round_half()).round_half())[2], "v2 = add v0 v1");
    }

    #[test]
    fn equal_nodes_are_one_and_dead_ones_fall_away() {
        assert_eq!(
            simplified(|x, y| {
                let _ = y.exp();
                (x + y).tanh() / (x + y).tanh()
            })
            .len(),
            6
        );
    }

    #[test]
    fn views_of_views_are_one() {
        let reshaped = simplified(|x, _| x.reshape(&[2, 2]).reshape(&[4, 1]));
        assert_eq!(reshaped, ["v0 = input{0}", "v1 = reshape{[4, 1]} v0", "output z v1"]);
        assert_eq!(simplified(|x, _| x.reshape(&[2, 2]).transpose(1, 2).transpose(1, 2).flatten()).len(), 2);
    }

    #[test]
    fn reshapes_of_one_sum_are_one_sum_over_shards() {
        let sums = simplified(|x, _| {
            let sum = x.sum_samples();
            sum.reshape(&[2, 2]).sum_shards().reshape(&[4]) + sum.sum_shards()
        });
        assert_eq!(sums.iter().filter(|line| line.contains("sum_shards")).count(), 1, "{sums:?}");
    }
}
