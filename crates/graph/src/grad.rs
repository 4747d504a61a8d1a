//! Reverse-mode differentiation: gradients are nodes of the same tape.

use std::collections::BTreeMap;

use crate::graph::NodeId;
use crate::op::Io;
use crate::ops::Again;
use crate::tape::{Tape, Var};
use crate::types::Lead;

/// What arrived at a node so far, apart by lead: sums over shards are made once, of the total.
#[derive(Default)]
struct Arrived {
    own: Option<Var>,
    shard: Option<Var>,
}

impl Arrived {
    fn add(&mut self, dy: Var) {
        let place = if dy.ty().lead == Lead::Shard { &mut self.shard } else { &mut self.own };
        *place = Some(place.take().map_or_else(|| dy.clone(), |old| &old + &dy));
    }

    /// All of it, as a gradient of a value with lead `lead`.
    fn total(self, lead: Lead) -> Option<Var> {
        let shard = if lead == Lead::Global { self.shard.map(|s| s.sum_shards()) } else { self.shard };
        match (self.own, shard) {
            (Some(a), Some(b)) => Some(&a + &b),
            (a, b) => a.or(b),
        }
    }
}

impl Tape {
    /// The gradients of the scalar `y` with respect to `x`, zeros where `y` does not depend on one.
    ///
    /// `y` is global: the sum of something over all samples ([`Var::sum_shards`]), or a function of global values. Gradients
    /// of global values are global: their parts are summed within each shard, then over the shards.
    pub fn gradients(&self, y: &Var, x: &[Var]) -> Vec<Var> {
        if y.ty().lead != Lead::Global || !y.dims().is_empty() {
            self.fail_here("gradients", format!("{} is not one number for the whole batch", y.ty()));
            return x.to_vec();
        }
        let mut on_the_way = self.depends(x, y.id());
        let mut arrived: BTreeMap<NodeId, Arrived> = BTreeMap::new();
        arrived.entry(y.id()).or_default().add(self.constant(1.0));
        let mut totals: BTreeMap<NodeId, Var> = BTreeMap::new();
        // What was recorded again, and the nodes that those stand for.
        let mut first_time: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        let mut again: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        while let Some((id, parts)) = arrived.pop_last() {
            let node = self.node(id);
            let y = self.var(id);
            let Some(dy) = parts.total(node.ty.lead) else { continue };
            if let (Some(region), false) = (self.region(id), again.contains_key(&id)) {
                let new = self.record_again(region, &dy);
                on_the_way.resize(self.len(), false);
                for (&old, &copy) in &new {
                    on_the_way[copy] = on_the_way[old];
                    self.node(copy)
                        .inputs
                        .iter()
                        .for_each(|&i| on_the_way[i] |= self.is_again(i, &on_the_way));
                }
                first_time.extend(new.iter().map(|(&old, &copy)| (copy, old)));
                again.extend(new);
            }
            if let Some(&copy) = again.get(&id) {
                arrived.entry(copy).or_default().add(dy);
                continue;
            }
            totals.insert(first_time.get(&id).copied().unwrap_or(id), dy.clone());
            let inputs: Vec<Var> = node.inputs.iter().map(|&i| self.var(i)).collect();
            if !inputs.iter().any(|v| on_the_way[v.id()]) {
                continue;
            }
            let gradients =
                self.in_scope_of(&node.scope, || node.op.gradient(&Io { x: &inputs, y: &y, dy: &dy }));
            for (input, gradient) in inputs.iter().zip(gradients) {
                if let (true, Some(gradient)) = (on_the_way[input.id()], gradient) {
                    arrived.entry(input.id()).or_default().add(gradient);
                }
            }
        }
        let zero = |v: &Var| self.constant(0.0).expand(v.ty().lead, v.dims());
        x.iter().map(|v| totals.get(&v.id()).cloned().unwrap_or_else(|| zero(v))).collect()
    }

    /// Whether a node is a value once more that is on the way itself.
    fn is_again(&self, id: NodeId, on_the_way: &[bool]) -> bool {
        let node = self.node(id);
        node.op.name() == Again::NAME && on_the_way[node.inputs[0]]
    }

    /// Which nodes up to `last` depend on one of `x`.
    fn depends(&self, x: &[Var], last: NodeId) -> Vec<bool> {
        let mut depends = vec![false; last + 1];
        x.iter().filter(|v| v.id() <= last).for_each(|v| depends[v.id()] = true);
        for id in 0..=last {
            depends[id] = depends[id] || self.node(id).inputs.iter().any(|&i| depends[i]);
        }
        depends
    }
}
