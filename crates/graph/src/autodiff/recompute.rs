//! Activation checkpointing: values that are computed a second time for the gradients instead of being kept
//! (Chen et al. 2016; PyTorch's `checkpoint`).
//!
//! A region is a range of nodes. When the first gradient arrives in it, its nodes are recorded a second time,
//! on the same operands behind [`Checkpoint`], and the gradients go through these. So what the region
//! computed on the way forward is needed on the way forward only. Global values, such as a batch's
//! statistics, are small and cost an exchange between devices, so they are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::ops::Checkpoint;
use crate::trace::{NodeId, Tape, Var};
use crate::values::{DType, Lead};

/// What was recorded a second time for gradients. Gradients arrive at the original nodes, so they are added
/// in the same order as without regions.
#[derive(Default)]
pub(super) struct SecondTime {
    /// Where the regions start that were recorded.
    regions: BTreeSet<NodeId>,
    /// The copy of each node.
    copies: BTreeMap<NodeId, NodeId>,
    /// The original of each copy and of each [`Checkpoint`].
    originals: BTreeMap<NodeId, NodeId>,
}

impl SecondTime {
    /// Returns the copy of a node, or the node itself where it has none.
    pub(super) fn copy_of(&self, id: NodeId) -> NodeId {
        self.copies.get(&id).copied().unwrap_or(id)
    }

    /// Returns the node that a node is a copy of, or the node itself.
    pub(super) fn original_of(&self, id: NodeId) -> NodeId {
        self.originals.get(&id).copied().unwrap_or(id)
    }
}

impl Tape {
    /// Records what `f` records as a region whose values are computed a second time for the gradients. A
    /// region inside of another one is a part of that one.
    pub fn recompute<T>(&self, f: impl FnOnce() -> T) -> T {
        let first = self.len();
        self.enter_region();
        let result = f();
        self.leave_region(first);
        result
    }

    /// Records the nodes of a region a second time, after `token`, if that has not been done.
    pub(super) fn record_checkpointed(&self, region: Range<NodeId>, token: &Var, done: &mut SecondTime) {
        if !done.regions.insert(region.start) {
            return;
        }
        let mut again: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        let mut late: BTreeMap<NodeId, Var> = BTreeMap::new();
        for id in region {
            let node = self.node(id);
            if node.inputs.is_empty() || node.ty.lead == Lead::Global {
                continue;
            }
            let mut operand = |&input: &NodeId| {
                let var = self.var(again.get(&input).copied().unwrap_or(input));
                let kept = var.ty().lead == Lead::Global && var.ty().dtype != DType::U32;
                if kept || again.contains_key(&input) {
                    return var;
                }
                late.entry(input).or_insert_with(|| self.apply(Checkpoint, &[&var, token])).clone()
            };
            let inputs: Vec<Var> = node.inputs.iter().map(&mut operand).collect();
            let operands: Vec<&Var> = inputs.iter().collect();
            let new = self.in_scope_of(&node.scope, || self.record(node.op.clone(), &operands));
            self.copy_in_f32(id, new.id());
            again.insert(id, new.id());
        }
        self.save_again(&again);
        let late = late.into_iter().map(|(input, checkpoint)| (checkpoint.id(), input));
        done.originals.extend(again.iter().map(|(&original, &copy)| (copy, original)).chain(late));
        done.copies.extend(again);
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::interpret;
    use crate::{Array, Feed, Frame, Graph, Precision, Program, Run, StateKind, Target, Type, simplify};

    use super::*;

    /// Layers of a tower, each a region or not: the gradient of its weight and its loss.
    fn tower(precision: Precision, recomputes: bool) -> Graph {
        let tape = Tape::with_precision(precision);
        let mut x = tape.input("x", Type::sample(&[64]));
        let weights: Vec<Var> =
            (0..6).map(|i| tape.state(&format!("{i}"), &[64, 64], StateKind::Parameter)).collect();
        for (i, w) in weights.iter().enumerate() {
            let layer = || x.matmul_t(w).tanh().dropout(0.5, &i.to_string()).matmul_t(w).tanh() + &x;
            x = if recomputes { tape.recompute(layer) } else { layer() };
        }
        let loss = x.square().sum_all().sum_shards();
        for (i, gradient) in tape.gradients(&loss, &weights).iter().enumerate() {
            tape.output(&format!("d{i}"), gradient);
        }
        tape.finish().unwrap()
    }

    /// A value used inside its region and after it gets the gradients of both uses.
    #[test]
    fn a_value_inside_of_a_region_has_its_whole_gradient() {
        let graph = |recomputes: bool| {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[4]));
            let region = || {
                let inner = x.tanh();
                (inner.clone(), &inner * &inner)
            };
            let (inner, square) = if recomputes { tape.recompute(region) } else { region() };
            let loss = (square + inner.sin()).sum_all().sum_shards();
            let gradients = tape.gradients(&loss, &[inner, x]);
            tape.output("inner", &gradients[0]);
            tape.output("x", &gradients[1]);
            tape.finish().unwrap()
        };
        let x = Array::new(&[2, 4], (0..8).map(|n| f64::from(n) / 8.0 - 0.5).collect());
        let feed = Feed { frame: Frame { shards: vec![1, 1] }, inputs: vec![x], states: vec![] };
        let [kept, again] = [false, true].map(|recomputes| interpret(&graph(recomputes), &feed).outputs);
        assert_eq!(kept, again);
    }

    /// A region is recorded once, however many statistics of the batch are in it, and its gradients are added
    /// in the order in which they are without it.
    #[test]
    fn a_region_with_statistics_is_computed_once_more() {
        let graph = |recomputes: bool| {
            let tape = Tape::new();
            let x = tape.input("x", Type::sample(&[4]));
            let w = tape.state("w", &[4, 4], StateKind::Parameter);
            let region = || {
                (0..3).fold(x.clone(), |x, _| {
                    let y = x.matmul_t(&w).tanh();
                    let mean = y.sum_shards() / 5.0;
                    let spread = (&y - &mean).square().sum_shards();
                    (&y - mean) * (spread + 0.1).rsqrt() + &x
                })
            };
            let y = if recomputes { tape.recompute(region) } else { region() };
            let loss = (&y * x.matmul_t(&w)).sum_all().sum_shards();
            tape.output("dw", &tape.gradients(&loss, std::slice::from_ref(&w))[0]);
            simplify(&tape.finish().unwrap())
        };
        let feed = Feed {
            frame: Frame { shards: vec![3, 2] },
            inputs: vec![Array::new(&[5, 4], (0..20).map(|n| f64::from(n % 7) / 8.0 - 0.3).collect())],
            states: vec![Array::new(&[4, 4], (0..16).map(|n| f64::from(n % 5) / 4.0 - 0.4).collect())],
        };
        let graphs = [false, true].map(graph);
        let [kept, again] = graphs.each_ref().map(|graph| interpret(graph, &feed).outputs);
        assert_eq!(kept, again);
        let tanh = |graph: &Graph| graph.nodes.iter().filter(|node| node.op.name() == "tanh").count();
        assert_eq!(graphs.each_ref().map(tanh), [3, 6]);
    }

    #[test]
    fn gradients_are_the_same_and_memory_is_less() {
        let feed = |graph: &Graph| Feed {
            frame: Frame { shards: vec![3, 2] },
            inputs: graph
                .inputs
                .iter()
                .map(|i| {
                    let count = i.ty.count() * if i.ty.lead == Lead::Sample { 5 } else { 1 };
                    let dims: Vec<usize> =
                        if i.ty.lead == Lead::Sample { vec![5, 64] } else { i.ty.dims.clone() };
                    Array::new(&dims, (0..count).map(|n| (n % 7) as f64).collect())
                })
                .collect(),
            states: graph
                .states
                .iter()
                .map(|s| {
                    Array::new(&s.ty.dims, (0..s.ty.count()).map(|n| (n % 5) as f64 / 40.0 - 0.05).collect())
                })
                .collect(),
        };
        let [full, mixed] = [Precision::F32, Precision::Mixed].map(|precision| {
            let (kept, again) = (tower(precision, false), tower(precision, true));
            let gradients = interpret(&kept, &feed(&kept)).outputs;
            assert_eq!(gradients, interpret(&again, &feed(&again)).outputs, "{precision}");
            gradients
        });
        assert_ne!(full, mixed);
        // A region rounds its products' gradients also where an operand was rounded outside of it.
        let shared = |recomputes: bool| {
            let tape = Tape::with_precision(Precision::Mixed);
            let x = tape.input("x", Type::sample(&[4, 64]));
            let w = tape.state("0", &[64, 64], StateKind::Parameter);
            let memory = x.matmul_t(&w);
            let region = |x: &Var| {
                let region = || {
                    let scores = tape.in_f32(|| x.matmul_t(&memory)) * 0.125;
                    scores.softmax().matmul(&memory).tanh() + x.matmul_t(&w)
                };
                if recomputes { tape.recompute(region) } else { region() }
            };
            let loss = (region(&region(&x)) * 9.0).square().sum_all().sum_shards();
            tape.output("d", &tape.gradients(&loss, std::slice::from_ref(&w))[0]);
            tape.finish().unwrap()
        };
        let [kept, again] = [false, true].map(shared);
        let inputs = Array::new(&[5, 4, 64], (0..5 * 256).map(|n| f64::from(n % 11) / 7.0).collect());
        let states = Array::new(&[64, 64], (0..64 * 64).map(|n| f64::from(n % 5) / 40.0 - 0.05).collect());
        let frame = Frame { shards: vec![3, 2] };
        let feed = Feed { frame, inputs: vec![inputs], states: vec![states] };
        assert_eq!(interpret(&kept, &feed).outputs, interpret(&again, &feed).outputs);
        let (kept, again) = (tower(Precision::F32, false), tower(Precision::F32, true));
        let scratch = |graph: &Graph| {
            let run = Run::whole(&[512, 512]);
            Program::compile(graph).unwrap().plan(&run, &Target::default()).unwrap().scratch_bytes()
        };
        let (kept, again) = (scratch(&kept), scratch(&again));
        assert!(3 * again < 2 * kept, "{again} bytes instead of {kept}");
    }
}
