//! The f64 interpreter: what a graph means, without a device. It is slow and plain, and everything else is
//! compared with it.

use std::collections::BTreeMap;

use crate::trace::{Graph, Input, NodeId, OutputKind, State};
use crate::values::{Array, Frame};

/// The data of a step for the interpreter.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The number of samples in each shard.
    pub frame: Frame,
    /// One array for each input, in the order of [`Graph::inputs`].
    pub inputs: Vec<Array>,
    /// One array for each state, in the order of [`Graph::states`].
    pub states: Vec<Array>,
}

/// The results of a step.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The outputs of [`OutputKind::Value`] by name.
    pub outputs: BTreeMap<String, Array>,
    /// What the carries hold in the next step, by name.
    pub carries: BTreeMap<String, Array>,
    /// The new values of states, by index. States that the step does not replace are absent.
    pub updates: BTreeMap<usize, Array>,
}

/// Evaluates a graph in f64.
pub fn interpret(graph: &Graph, feed: &Feed) -> Outcome {
    let values = evaluate(graph, feed);
    let value = |id: NodeId| values[id].clone().unwrap_or_else(|| Array::scalar(f64::NAN));
    let named = |kind| {
        let outputs = graph.outputs.iter().filter(move |output| output.kind == kind);
        outputs.map(|output| (output.name.clone(), value(output.node))).collect()
    };
    Outcome {
        outputs: named(OutputKind::Value),
        carries: named(OutputKind::Carry),
        updates: graph.updates.iter().map(|(&state, &id)| (state, value(id))).collect(),
    }
}

/// Returns the value of every live node.
fn evaluate(graph: &Graph, feed: &Feed) -> Vec<Option<Array>> {
    let live = graph.live();
    let mut values: Vec<Option<Array>> = vec![None; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate().filter(|(id, _)| live[*id]) {
        let value = if let Some(&Input(index)) = node.op.downcast_ref() {
            feed.inputs[index].clone()
        } else if let Some(&State(index)) = node.op.downcast_ref() {
            feed.states[index].clone()
        } else {
            let inputs: Vec<&Array> = node.inputs.iter().filter_map(|&i| values[i].as_ref()).collect();
            node.op.reference(&inputs, &node.ty, &feed.frame)
        };
        values[id] = Some(value);
    }
    values
}
