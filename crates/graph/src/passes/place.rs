//! Values inside of others: a part of a [`crate::ops::Concat`] is written where it lies in the whole, so that
//! putting values together costs nothing. What cannot be written there is copied by a node of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ops::{Broadcast, Checkpoint, MatMul};
use crate::trace::{Graph, Input, InputKind, Lowering, Node, NodeId, Output, OutputKind, State, View};
use crate::values::Lead;

/// Elements that do not all lie one behind the other: they lie in runs of `len`, each `stride` after the one
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// The number of elements of a run.
    pub len: usize,
    /// The distance from one run to the next, in elements.
    pub stride: usize,
}

impl Runs {
    /// Turns distances between the elements of a value that lies in these runs into distances in memory. No
    /// run ends within an axis.
    pub(crate) fn spread(self, steps: &mut [usize]) {
        let far = steps.iter_mut().filter(|step| **step >= self.len);
        far.for_each(|step| *step = *step / self.len * self.stride);
    }
}

/// Where a value lies in a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The larger value.
    pub whole: NodeId,
    /// The place of the part's first element in the larger value.
    pub inside: usize,
    /// How the part's elements lie in the larger value.
    pub runs: Runs,
}

/// The parts of a graph by node.
pub type Parts = BTreeMap<NodeId, Part>;

/// Returns the graph with a copy of every operand of a `concat` that cannot be computed in its place, and of
/// every other value that is needed in two places. Returns also the places of all parts, each in a whole that
/// is itself no part.
pub fn place_parts(graph: &Graph) -> (Graph, Parts) {
    let placer = Placer::new(graph);
    let mut new = graph.with_nodes(vec![]);
    let mut moved: Vec<NodeId> = Vec::with_capacity(graph.nodes.len());
    let mut parts = Parts::new();
    let mut summed: BTreeSet<NodeId> = BTreeSet::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        let mut inputs: Vec<NodeId> = node.inputs.iter().map(|&i| moved[i]).collect();
        let places = placer.places(id);
        for (index, &operand) in node.inputs.iter().enumerate() {
            let source = placer.source(operand);
            let place = places.get(index).filter(|place| place.runs.len > 0);
            let is_here =
                place.is_some_and(|p| !parts.contains_key(&moved[source]) && placer.fits(source, p.runs));
            // What is summed over shards lies in a bucket, each shard's apart, and in one place there.
            let is_summed = matches!(placer.lowering[id], Lowering::SumShards) && {
                let own = placer.stored(operand);
                let is_second = !summed.insert(own);
                let is_elsewhere = placer.shown.contains(&own) || placer.products.contains_key(&own);
                is_second || is_elsewhere || matches!(placer.lowering[source], Lowering::Concat(_))
            };
            let mut part = moved[source];
            if place.is_some() && !is_here || is_summed {
                let like = &graph.nodes[operand];
                let op = Broadcast { lead: like.ty.lead, dims: like.ty.dims.clone() };
                new.nodes.push(Node { op: Arc::new(op), inputs: vec![inputs[index]], ..like.clone() });
                part = new.nodes.len() - 1;
                inputs[index] = part;
            }
            parts.extend(place.map(|&place| (part, place)));
        }
        new.nodes.push(Node { inputs, ..node.clone() });
        moved.push(new.nodes.len() - 1);
    }
    parts.values_mut().for_each(|part| part.whole = moved[part.whole]);
    new.move_roots(&moved);
    copy_lasting(&mut new);
    (new, outermost(parts))
}

/// Memory that outlives the step: a state, or a resident memory by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lasting {
    State(usize),
    Resident(usize),
}

/// Copies the states and resident memories that change in the step and that are as they were before it an
/// output, or the new value of another one: by the time that these are read, the new value may be in their
/// place.
fn copy_lasting(graph: &mut Graph) {
    let memory_of = |id: NodeId| {
        let id = graph.behind(id, |id| graph.nodes[id].op.lowering().is_reshape());
        let op = &graph.nodes[id].op;
        let resident = |&Input(index): &Input| match graph.inputs[index].kind {
            InputKind::Resident(number) => Some(Lasting::Resident(number)),
            InputKind::Data | InputKind::Carry | InputKind::Random => None,
        };
        let state = || op.downcast_ref().map(|&State(index)| Lasting::State(index));
        op.downcast_ref().and_then(resident).or_else(state)
    };
    let kept = |output: &Output| match output.kind {
        OutputKind::Resident(number) => Some(Lasting::Resident(number)),
        OutputKind::Value | OutputKind::Carry => None,
    };
    let shown = graph.outputs.iter().map(|output| (output.node, kept(output)));
    let new = graph.updates.iter().map(|(&state, &value)| (value, Some(Lasting::State(state))));
    let changed: BTreeSet<Lasting> = shown.clone().chain(new.clone()).filter_map(|(_, own)| own).collect();
    let changes = |value: NodeId, own: Option<Lasting>| {
        memory_of(value).is_some_and(|memory| Some(memory) != own && changed.contains(&memory))
    };
    let late: BTreeSet<NodeId> =
        shown.chain(new).filter(|&(value, own)| changes(value, own)).map(|(value, _)| value).collect();
    for value in late {
        let ty = graph.nodes[value].ty.clone();
        let op = Broadcast { lead: ty.lead, dims: ty.dims.clone() };
        graph.nodes.push(Node { op: Arc::new(op), inputs: vec![value], ..graph.nodes[value].clone() });
        let copy = graph.nodes.len() - 1;
        let outputs = graph.outputs.iter_mut().map(|output| &mut output.node);
        outputs.chain(graph.updates.values_mut()).filter(|id| **id == value).for_each(|id| *id = copy);
    }
}

/// Returns the parts with their places in the outermost wholes.
fn outermost(parts: Parts) -> Parts {
    let mut outermost = Parts::new();
    // A whole comes after its parts.
    for (id, part) in parts.into_iter().rev() {
        let in_outer = outermost.get(&part.whole).map(|outer: &Part| {
            let runs = Runs { len: part.runs.len, stride: outer.runs.stride };
            Part { whole: outer.whole, inside: part.inside + outer.inside, runs }
        });
        outermost.insert(id, in_outer.unwrap_or(part));
    }
    outermost
}

struct Placer<'a> {
    graph: &'a Graph,
    lowering: Vec<Lowering>,
    /// The values with a place of their own: outputs, new states, and what is summed over shards.
    fixed: BTreeSet<NodeId>,
    /// The outputs and new states among them.
    shown: BTreeSet<NodeId>,
    /// For each value the products that read it: the product, which of its operands it is, and the node it is
    /// read as.
    products: BTreeMap<NodeId, Vec<(NodeId, usize, NodeId)>>,
}

impl<'a> Placer<'a> {
    fn new(graph: &'a Graph) -> Self {
        let lowering: Vec<Lowering> = graph.nodes.iter().map(|n| n.op.lowering()).collect();
        let (fixed, shown) = (BTreeSet::new(), BTreeSet::new());
        let mut placer = Self { graph, lowering, fixed, shown, products: BTreeMap::new() };
        for (id, node) in graph.nodes.iter().enumerate() {
            match placer.lowering[id] {
                Lowering::SumShards => {
                    placer.fixed.insert(placer.stored(node.inputs[0]));
                }
                // Its kernel reads operands that lie in one piece.
                Lowering::RowSums { .. } | Lowering::Attention { .. } => {
                    let operands = node.inputs.iter().map(|&operand| placer.stored(operand));
                    placer.fixed.extend(operands.collect::<Vec<_>>());
                }
                Lowering::MatMul { .. } | Lowering::Contract => {
                    for (index, &operand) in node.inputs.iter().enumerate() {
                        let source = placer.stored(operand);
                        placer.products.entry(source).or_default().push((id, index, operand));
                    }
                }
                _ => {}
            }
        }
        placer.shown = graph.roots().map(|id| placer.stored(id)).collect();
        placer.fixed.extend(&placer.shown);
        placer
    }

    /// Returns the node whose storage holds a value in row-major order.
    fn stored(&self, id: NodeId) -> NodeId {
        self.graph.behind(id, |id| self.lowering[id].is_reshape())
    }

    /// Returns the same as [`Placer::stored`], but a checkpoint of a value is not that value.
    fn source(&self, id: NodeId) -> NodeId {
        let is_checkpoint = |id: NodeId| self.graph.nodes[id].op.is::<Checkpoint>();
        self.graph.behind(id, |id| self.lowering[id].is_reshape() && !is_checkpoint(id))
    }

    /// Returns where the operands of a `concat` lie in it, and nothing for other nodes.
    fn places(&self, id: NodeId) -> Vec<Part> {
        let Lowering::Concat(axis) = self.lowering[id] else { return vec![] };
        let node = &self.graph.nodes[id];
        let inner: usize = node.ty.dims[axis + 1..].iter().product();
        let mut first = 0;
        let mut place = |operand: &NodeId| {
            let length = self.graph.nodes[*operand].ty.dims[axis];
            let runs = Runs { len: length * inner, stride: node.ty.dims[axis] * inner };
            first += length;
            Part { whole: id, inside: (first - length) * inner, runs }
        };
        node.inputs.iter().map(&mut place).collect()
    }

    /// Returns whether a value can be computed in such runs, and all that read it can read it there.
    fn fits(&self, id: NodeId, runs: Runs) -> bool {
        let ty = &self.graph.nodes[id].ty;
        let is_computed = match &self.lowering[id] {
            Lowering::View(view) => *view != View::Reshape,
            // A run of the outer one holds one of each inner part's.
            Lowering::Concat(axis) => ty.dims[*axis..].iter().product::<usize>() == runs.len,
            lowering => lowering.is_inline(),
        };
        let readable = |&(product, index, operand): &(NodeId, usize, NodeId)| {
            let inputs = &self.graph.nodes[product].inputs;
            let row = self.graph.nodes[operand].ty.dims.last();
            let rows = match self.lowering[product] {
                Lowering::MatMul { .. } => {
                    let [a, b] = [inputs[0], inputs[1]].map(|i| &self.graph.nodes[i].ty);
                    index == 0 && MatMul::is_rows(a, b)
                }
                _ => true,
            };
            rows && row == Some(&runs.len)
        };
        let products = self.products.get(&id).map_or(&[][..], |all| all);
        is_computed && ty.lead != Lead::Shard && !self.fixed.contains(&id) && products.iter().all(readable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StateKind, Tape, Type, Var, simplify};

    fn placed(build: impl Fn(&Tape) -> Var) -> (Graph, Vec<Part>) {
        let tape = Tape::new();
        tape.output("y", &build(&tape));
        let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
        (graph, parts.into_values().collect())
    }

    fn copies(graph: &Graph) -> usize {
        graph.nodes.iter().filter(|node| node.op.name() == "broadcast").count()
    }

    #[test]
    fn a_part_of_a_part_lies_in_the_whole() {
        let (graph, parts) = placed(|t| {
            let x = t.input("x", Type::sample(&[3]));
            let gates = |x: &Var| x.sigmoid().concat(&[&x.tanh()], -1).reshape(&[1, 6]);
            gates(&x).concat(&[&gates(&(&x * 2.0))], 1) * 3.0
        });
        let run = |part: &Part| (part.inside, part.runs.len, part.runs.stride);
        let runs: Vec<_> = parts.iter().map(run).collect();
        assert_eq!(runs, [(0, 3, 12), (3, 3, 12), (0, 6, 12), (6, 3, 12), (9, 3, 12), (6, 6, 12)], "{graph}");
        assert!(parts.iter().all(|part| part.whole == parts[0].whole));
        assert_eq!(copies(&graph), 2, "the two factors alone: {graph}");
    }

    #[test]
    fn what_has_another_place_is_copied() {
        let (graph, parts) = placed(|t| {
            let x = t.input("x", Type::sample(&[3]));
            let twice = x.tanh();
            x.concat(&[&twice, &twice], -1).exp()
        });
        assert_eq!((copies(&graph), parts.len()), (2, 3), "{graph}");
    }

    #[test]
    fn a_product_reads_rows_and_nothing_else_in_their_place() {
        let product = |rows: bool| {
            placed(|t| {
                let (x, w) =
                    (t.input("x", Type::sample(&[2, 3])), t.state("w", &[3, 3], StateKind::Parameter));
                let h = x.tanh();
                let y = if rows { h.matmul(&w) } else { h.matmul_t(&h) };
                h.concat(&[&y], -1).exp()
            })
        };
        // The product itself is copied.
        assert_eq!(copies(&product(true).0), 1);
        assert_eq!(copies(&product(false).0), 2);
    }
}
