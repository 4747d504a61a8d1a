//! The traced graph: nodes in the order they were made, so operands come before their users.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::trace::{Input, Op};
use crate::values::Type;

/// Index of a node in its graph.
pub type NodeId = usize;

/// One op applied to operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op that is applied.
    pub op: Arc<dyn Op>,
    /// The operands.
    pub inputs: Vec<NodeId>,
    /// The result's type.
    pub ty: Type,
    /// The path of the layer that asked for the node, for error messages.
    pub scope: Arc<str>,
}

impl Node {
    /// Returns whether the node is an input of one number. For kernels, all of these count as one buffer.
    pub(crate) fn is_scalar_input(&self) -> bool {
        self.op.is::<Input>() && self.ty == Type::global(&[])
    }
}

/// Data that arrives with each step.
#[derive(Clone, Debug, PartialEq)]
pub struct InputDecl {
    /// The input's name. Names are unique among the inputs of a kind.
    pub name: String,
    /// The input's type. Inputs of [`crate::Lead::Sample`] have one row a sample.
    pub ty: Type,
    /// Who fills the input.
    pub kind: InputKind,
}

/// Who fills an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InputKind {
    /// The caller fills it with each batch.
    Data,
    /// The caller fills it with what the step before gave as the output of [`OutputKind::Carry`] of the same
    /// name.
    Carry,
    /// Nobody fills it. It is resident memory `.0` of the device, which a step before this one left there
    /// ([`OutputKind::Resident`]). Each device has that of the samples which it computes.
    Resident(usize),
    /// Whoever runs the plan fills it with the words of [`crate::RandomKey`]. The position in the key is that
    /// of the first sample of the run of shards.
    Random,
}

/// A value that the caller asked to see.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The output's name. Names are unique among the outputs of a kind.
    pub name: String,
    /// What the output is for.
    pub kind: OutputKind,
    /// The value.
    pub node: NodeId,
}

/// What an output is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputKind {
    /// It is a result of the step.
    Value,
    /// It is what the input of [`InputKind::Carry`] of the same name holds in the next step.
    Carry,
    /// It stays on the device, as resident memory `.0`, and replaces what was there when the step commits.
    Resident(usize),
}

/// A tensor that outlives the step.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDecl {
    /// The state's name, for example `0.weight`. Names are unique among the states.
    pub name: String,
    /// The state's type, which is always global.
    pub ty: Type,
    /// What the state is.
    pub kind: StateKind,
}

/// What a tensor of the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKind {
    /// It is a parameter, which training updates by its gradient.
    Parameter,
    /// It is a statistic, which the forward pass replaces, such as batch norm's running mean.
    Statistic,
    /// It belongs to the optimizer, such as a momentum.
    Optimizer,
}

/// A step as a graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The nodes. Operands come before the nodes that use them.
    pub nodes: Vec<Node>,
    /// The data that each step brings.
    pub inputs: Vec<InputDecl>,
    /// The tensors that outlive the step.
    pub states: Vec<StateDecl>,
    /// What the caller asked to see, in the order in which it was asked for.
    pub outputs: Vec<Output>,
    /// The new values of states, by index into `states`. They take effect when the step commits.
    pub updates: BTreeMap<usize, NodeId>,
}

impl Graph {
    /// Returns a graph with other nodes and all else the same.
    pub(crate) fn with_nodes(&self, nodes: Vec<Node>) -> Self {
        let Self { nodes: _, inputs, states, outputs, updates } = self;
        let (inputs, states, outputs) = (inputs.clone(), states.clone(), outputs.clone());
        Self { nodes, inputs, states, outputs, updates: updates.clone() }
    }

    /// Changes the nodes of outputs and new states after a pass: `moved` holds the new node of each old one.
    pub(crate) fn move_roots(&mut self, moved: &[NodeId]) {
        self.outputs.iter_mut().for_each(|output| output.node = moved[output.node]);
        self.updates.values_mut().for_each(|id| *id = moved[*id]);
    }

    /// Returns the values that a step leaves: its outputs, then the new values of its states.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.outputs.iter().map(|output| output.node).chain(self.updates.values().copied())
    }

    /// Follows first operands from a node on, as long as `passes` holds. Returns the first node for which it
    /// does not hold.
    pub(crate) fn behind(&self, mut id: NodeId, passes: impl Fn(NodeId) -> bool) -> NodeId {
        while passes(id) {
            id = self.nodes[id].inputs[0];
        }
        id
    }

    /// Returns for each node whether the [roots](Graph::roots) need it; they need themselves.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        self.roots().for_each(|root| live[root] = true);
        for id in (0..self.nodes.len()).rev() {
            if live[id] {
                self.nodes[id].inputs.iter().for_each(|&i| live[i] = true);
            }
        }
        live
    }

    /// Returns how an error names a node, for example `layer: matmul [B, 784]`.
    pub fn describe(&self, id: NodeId) -> String {
        let node = &self.nodes[id];
        let layer = if node.scope.is_empty() { String::new() } else { format!("{}: ", node.scope) };
        format!("{layer}{} {}", node.op.name(), node.ty)
    }
}

/// Writes one line for each node, for example `v3 = mul v1 v2 : [B, 10]`.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes.iter().enumerate() {
            write!(f, "v{id} = {}", node.op.name())?;
            let attrs = node.op.attrs();
            if !attrs.is_empty() {
                write!(f, "{{{attrs}}}")?;
            }
            node.inputs.iter().try_for_each(|i| write!(f, " v{i}"))?;
            writeln!(f, " : {}", node.ty)?;
        }
        for Output { name, kind, node } in &self.outputs {
            let kind = match kind {
                OutputKind::Value => "output",
                OutputKind::Carry => "carry",
                OutputKind::Resident(_) => "resident",
            };
            writeln!(f, "{kind} {name} v{node}")?;
        }
        for (state, id) in &self.updates {
            writeln!(f, "update {} v{id}", self.states[*state].name)?;
        }
        Ok(())
    }
}
