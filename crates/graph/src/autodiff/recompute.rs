//! Activation checkpointing: values that are computed a second time for the gradients instead of being kept
//! (Chen et al. 2016; PyTorch's `checkpoint`).
//!
//! A region is a range of nodes. When the first gradient arrives in it, its nodes are recorded a second time,
//! on the same operands behind [`Checkpoint`], and the gradients go through these. So what the region
//! computed on the way forward is needed on the way forward only. Global values, such as a batch's
//! statistics, are small and cost an exchange between devices, so they are kept.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ops::Checkpoint;
use crate::trace::{NodeId, Tape, Var};
use crate::values::{DType, Lead};

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

    /// Records the nodes of a region a second time, after `token`. Returns the new node of each one that is
    /// not kept.
    pub(crate) fn record_checkpointed(&self, region: Range<NodeId>, token: &Var) -> BTreeMap<NodeId, NodeId> {
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
            again.insert(id, new.id());
        }
        self.save_again(&again);
        again
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::interpret;
    use crate::{Array, Feed, Frame, Graph, Precision, Program, Run, StateKind, Target, Type};

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
        for (name, kept) in kept {
            let far =
                kept.data.iter().zip(&again[&name].data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-12, "{name}: {far}");
        }
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
        let (kept, again) = (tower(Precision::F32, false), tower(Precision::F32, true));
        let scratch = |graph: &Graph| {
            let run = Run::whole(&[512, 512]);
            Program::compile(graph).unwrap().plan(&run, &Target::default()).unwrap().scratch_bytes()
        };
        let (kept, again) = (scratch(&kept), scratch(&again));
        assert!(3 * again < 2 * kept, "{again} bytes instead of {kept}");
    }
}
