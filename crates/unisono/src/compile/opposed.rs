//! Losses that work against each other, as those of a generator and its critic do where both train the same
//! parameters.

use std::collections::BTreeSet;

use unisono_graph::{Graph, StateKind, ops};

use crate::compile::objective::LossOn;
use crate::compile::parts::Parts;
use crate::identity::graph::{Hash, value_hashes};
use crate::model::functional::Outputs;

/// Two losses of the same kind that train the same parameter, on two outputs with the same value. If their
/// targets differ, they work against each other.
pub(crate) struct Opposed {
    pub outputs: [String; 2],
    pub targets: [String; 2],
    /// A parameter that both losses train.
    pub parameter: String,
}

impl Opposed {
    /// Returns the first two such losses of a forward pass. Phases have parameters of their own.
    pub fn find(graph: &Graph, parts: &Parts, outputs: &Outputs) -> Option<Self> {
        let losses = &*parts.objective().losses;
        if losses.len() < 2 || !parts.phases.is_empty() {
            return None;
        }
        let hashes = value_hashes(graph);
        let known: Vec<Known<'_>> = losses.iter().filter_map(|of| Known::of(of, outputs, &hashes)).collect();
        known.iter().enumerate().find_map(|(at, b)| {
            let a = known[..at].iter().find(|a| a.is_like(b))?;
            let [first, second] = [a, b].map(|loss| trained(graph, loss.node));
            let parameter = first.intersection(&second).next()?;
            Some(Self {
                outputs: [a, b].map(|loss| loss.output.to_owned()),
                targets: [a, b].map(|loss| loss.target.to_owned()),
                parameter: graph.states[*parameter].name.clone(),
            })
        })
    }
}

/// A loss with a target.
struct Known<'a> {
    name: &'a str,
    output: &'a str,
    target: &'a str,
    node: usize,
    value: Hash,
}

impl<'a> Known<'a> {
    fn of(loss: &'a LossOn, outputs: &Outputs, hashes: &[Hash]) -> Option<Self> {
        let node = outputs.get(&loss.on.output)?.id();
        Some(Self {
            name: loss.loss.name(),
            output: &loss.on.output,
            target: loss.on.target.as_deref()?,
            node,
            value: hashes[node],
        })
    }

    /// Whether two losses compare one value, under two names, with two targets.
    fn is_like(&self, other: &Self) -> bool {
        let is_same = (self.name, self.value) == (other.name, other.value);
        is_same && self.output != other.output && self.target != other.target
    }
}

/// Returns the parameters that the gradient of a node reaches.
fn trained(graph: &Graph, node: usize) -> BTreeSet<usize> {
    let mut is_reached = vec![false; node + 1];
    is_reached[node] = true;
    let mut found = BTreeSet::new();
    for id in (0..=node).rev().filter(|id| !graph.nodes[*id].op.is::<ops::Detach>()) {
        if !is_reached[id] {
            continue;
        }
        graph.nodes[id].inputs.iter().for_each(|&input| is_reached[input] = true);
        if let Some(&ops::State(state)) = graph.nodes[id].op.downcast_ref()
            && graph.states[state].kind == StateKind::Parameter
        {
            found.insert(state);
        }
    }
    found
}
