//! Values that share memory. This changes no result, so it is done when a graph is compiled, and takes no
//! part in a run's identity.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ops::{Concat, Saved, Slice};
use crate::trace::{Graph, Node, NodeId};

/// Returns a graph in which the values of a group of [`Saved`] are slices of one value, and in which parts
/// that lie side by side in an earlier value are one slice of it, so that they are copied at once.
pub(crate) fn share_memory(graph: &Graph) -> Graph {
    let mut groups: BTreeMap<usize, BTreeMap<usize, NodeId>> = BTreeMap::new();
    for node in &graph.nodes {
        if let Some(saved) = node.op.downcast_ref::<Saved>() {
            groups.entry(saved.group).or_default().insert(saved.place, node.inputs[0]);
        }
    }
    let mut new = graph.with_nodes(vec![]);
    let mut sharer = Sharer { nodes: &mut new.nodes, wholes: BTreeMap::new() };
    let mut joined: BTreeMap<usize, NodeId> = BTreeMap::new();
    let mut moved: Vec<NodeId> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let inputs: Vec<NodeId> = node.inputs.iter().map(|&i| moved[i]).collect();
        let own = match (node.op.downcast_ref::<Saved>(), node.op.downcast_ref::<Concat>()) {
            (Some(Saved { group, place }), _) => {
                let group_of = &groups[group];
                if group_of.len() < 2 {
                    moved.push(inputs[0]);
                    continue;
                }
                // Gradients are recorded after the values, so the whole group is there.
                let values: Vec<NodeId> = group_of.values().map(|&value| moved[value]).collect();
                let whole = *joined.entry(*group).or_insert_with(|| sharer.join(node, &values));
                let at = group_of.keys().position(|own| own == place).unwrap_or(0);
                sharer.slice(whole, 0, at * node.ty.dims[0]..(at + 1) * node.ty.dims[0])
            }
            (_, Some(&Concat { axis })) => sharer.concat(node, &inputs, axis),
            _ => sharer.add(Node { inputs, ..node.clone() }),
        };
        moved.push(own);
    }
    new.move_roots(&moved);
    new
}

/// A graph that grows.
struct Sharer<'g> {
    nodes: &'g mut Vec<Node>,
    /// The first `Concat` that each value is a part of.
    wholes: BTreeMap<NodeId, NodeId>,
}

impl Sharer<'_> {
    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Puts values of one shape side by side along their first axis.
    fn join(&mut self, like: &Node, values: &[NodeId]) -> NodeId {
        let mut dims = like.ty.dims.clone();
        dims[0] *= values.len();
        let op = Arc::new(Concat { axis: 0 });
        self.add(Node { op, inputs: values.to_vec(), ty: like.ty.with_dims(&dims), ..like.clone() })
    }

    /// Takes a range of a value along an axis.
    fn slice(&mut self, whole: NodeId, axis: usize, range: std::ops::Range<usize>) -> NodeId {
        let like = self.nodes[whole].clone();
        let (mut start, mut dims) = (vec![0; like.ty.dims.len()], like.ty.dims.clone());
        (start[axis], dims[axis]) = (range.start, range.len());
        let ty = like.ty.with_dims(&dims);
        self.add(Node { op: Arc::new(Slice { start, dims }), inputs: vec![whole], ty, ..like })
    }

    /// Puts values together. Those that lie side by side in an earlier value are one slice of it.
    fn concat(&mut self, node: &Node, inputs: &[NodeId], axis: usize) -> NodeId {
        let (mut parts, mut at) = (Vec::with_capacity(inputs.len()), 0);
        while at < inputs.len() {
            let (part, count) = self.slice_of_whole(&inputs[at..], axis).unwrap_or((inputs[at], 1));
            parts.push(part);
            at += count;
        }
        if let ([whole], true) = (&parts[..], inputs.len() > 1) {
            return *whole;
        }
        let is_new = parts.len() == inputs.len();
        let id = self.add(Node { inputs: parts, ..node.clone() });
        if is_new {
            inputs.iter().for_each(|&part| _ = self.wholes.entry(part).or_insert(id));
        }
        id
    }

    /// Returns how many of the first parts lie side by side in an earlier value, if at least two do, and the
    /// slice of that value which holds them.
    fn slice_of_whole(&mut self, parts: &[NodeId], axis: usize) -> Option<(NodeId, usize)> {
        let whole = *self.wholes.get(parts.first()?)?;
        let own = &self.nodes[whole];
        if !matches!(own.op.downcast_ref(), Some(Concat { axis: own }) if *own == axis) {
            return None;
        }
        let from = own.inputs.iter().position(|id| *id == parts[0])?;
        let count = own.inputs[from..].iter().zip(parts).take_while(|(a, b)| a == b).count();
        if count < 2 {
            return None;
        }
        let length = |ids: &[NodeId]| ids.iter().map(|&id| self.nodes[id].ty.dims[axis]).sum::<usize>();
        let (before, length) = (length(&own.inputs[..from]), length(&parts[..count]));
        if length == own.ty.dims[axis] {
            return Some((whole, count));
        }
        Some((self.slice(whole, axis, before..before + length), count))
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::{Tape, Type, Var, simplify};

    #[test]
    fn parts_beside_one_another_are_a_slice_of_the_value_that_they_are_in() {
        let both = |f: fn(&[Var], &Var) -> Vec<Var>| {
            let tape = Tape::new();
            let [x, y] = ["x", "y"].map(|name| tape.input(name, Type::sample(&[4])));
            let steps: Vec<Var> = (0..4).map(|at| (&x * (at as f32 + 2.0)).exp()).collect();
            let whole = steps[0].concat(&steps[1..].iter().collect::<Vec<_>>(), 1);
            let parts = f(&steps, &y);
            let other = parts[0].concat(&parts[1..].iter().collect::<Vec<_>>(), 1);
            tape.output("z", &(whole.sum(&[-1]) * other.sum(&[-1])));
            let graph = share_memory(&simplify(&tape.finish().unwrap()));
            let moves = graph.nodes.iter().filter(|node| ["concat", "slice"].contains(&node.op.name()));
            moves.map(|node| format!("{} {}", node.op.name(), node.op.attrs())).collect::<Vec<_>>()
        };
        let names = |moves: Vec<String>| {
            moves.iter().map(|text| text.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        // The steps before: another value, then all steps but the last one.
        let before = both(|steps, y| [slice::from_ref(y), &steps[..3]].concat());
        assert!(before[1].contains("[0]") && before[1].contains("[12]"), "{before:?}");
        assert_eq!(names(before), ["concat", "slice", "concat"]);
        assert_eq!(names(both(|steps, _| steps.to_vec())), ["concat"]);
        // All steps in a larger value.
        assert_eq!(names(both(|steps, y| [steps, slice::from_ref(y)].concat())), ["concat", "concat"]);
        // In another order, or one step alone, they are no slice.
        assert_eq!(names(both(|steps, _| steps.iter().rev().cloned().collect())), ["concat", "concat"]);
        assert_eq!(names(both(|steps, y| vec![y.clone(), steps[2].clone()])), ["concat", "concat"]);
    }
}
