//! A graph as a part of a run's identity.
//!
//! The hash of a node is that of its op, its type and the hashes of its operands. So neither the order in
//! which nodes were traced, nor a node that is computed twice, takes part: code that is written another way
//! and leaves the same graph keeps the run's identity. Activation checkpointing, and the memory in which
//! gradients find values, change no value and take no part either.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use unisono_graph::{Graph, Node, ops};

use crate::identity::part::{Entry, Part, add, hex};

pub(crate) type Hash = [u8; 32];

/// Returns the part of a simplified graph. Its entries are the layers, by their paths.
pub(crate) fn of_graph(graph: &Graph) -> Part {
    let ops: Vec<Hash> = graph.nodes.iter().map(|node| op_hash(graph, node)).collect();
    let whole = node_hashes(graph, &ops, same_value);
    let mut hash = Sha256::new();
    add(&mut hash, "graph 1");
    for output in &graph.outputs {
        add(&mut hash, &format!("output {:?} {:?}", output.kind, output.name));
        hash.update(whole[output.node]);
    }
    for (state, node) in &graph.updates {
        add(&mut hash, &format!("update {}", graph.states[*state].name));
        hash.update(whole[*node]);
    }
    Part::new(&hash.finalize(), layers(graph, &ops, &whole))
}

/// Returns a hash of each node that is equal for nodes of equal values, wherever their gradients stop.
pub(crate) fn value_hashes(graph: &Graph) -> Vec<Hash> {
    let ops: Vec<Hash> = graph.nodes.iter().map(|node| op_hash(graph, node)).collect();
    node_hashes(graph, &ops, |node| {
        let detached = node.op.is::<ops::Detach>().then(|| node.inputs.first().copied());
        detached.flatten().or(same_value(node))
    })
}

/// Returns the hash of each node with all that it is computed from. A node for which `same` returns an
/// operand only passes that on.
fn node_hashes(graph: &Graph, ops: &[Hash], same: impl Fn(&Node) -> Option<usize>) -> Vec<Hash> {
    let mut whole: Vec<Hash> = Vec::with_capacity(graph.nodes.len());
    for (node, op) in graph.nodes.iter().zip(ops) {
        let hash = match same(node) {
            Some(operand) => whole[operand],
            None => {
                let mut hash = Sha256::new_with_prefix(op);
                node.inputs.iter().for_each(|&i| hash.update(whole[i]));
                hash.finalize().into()
            }
        };
        whole.push(hash);
    }
    whole
}

/// Returns the operand that a node only passes on.
fn same_value(node: &Node) -> Option<usize> {
    let is_same = node.op.is::<ops::Checkpoint>() || node.op.is::<ops::Saved>();
    if is_same { node.inputs.first().copied() } else { None }
}

/// Returns the node whose value a node passes on, or the node itself.
fn origin(graph: &Graph, mut node: usize) -> usize {
    while let Some(operand) = same_value(&graph.nodes[node]) {
        node = operand;
    }
    node
}

/// Returns the hash of a node's op and type. An input and a state are known by their names.
fn op_hash(graph: &Graph, node: &Node) -> Hash {
    let mut hash = Sha256::new();
    add(&mut hash, &node.ty.to_string());
    add(&mut hash, &format!("{:?}", node.ty.dtype));
    if let Some(leaf) = leaf(graph, node) {
        add(&mut hash, &leaf);
        return hash.finalize().into();
    }
    let Ok(encoding) = node.op.encoding() else {
        // A tape refuses such ops.
        add(&mut hash, &format!("{:?}", node.op));
        return hash.finalize().into();
    };
    let own = built_in(encoding.type_name);
    add(&mut hash, own.as_deref().unwrap_or(encoding.type_name));
    hash.update((encoding.fields.len() as u64).to_le_bytes());
    hash.update(&encoding.fields);
    if own.is_none() {
        // What an op of the user's computes may change while its type and fields stay.
        add(&mut hash, &format!("{:?}", node.op.lowering()));
    }
    hash.finalize().into()
}

/// Returns an input or a state by its name.
fn leaf(graph: &Graph, node: &Node) -> Option<String> {
    if let Some(&ops::Input(index)) = node.op.downcast_ref() {
        let input = graph.inputs.get(index)?;
        return Some(format!("{:?} input {:?}", input.kind, input.name));
    }
    let &ops::State(index) = node.op.downcast_ref()?;
    let state = graph.states.get(index)?;
    Some(format!("{:?} {:?}", state.kind, state.name))
}

/// Returns the name of a built-in op without the modules that it is in, so that moving a file changes no
/// identity.
fn built_in(type_name: &str) -> Option<String> {
    let path = type_name.strip_prefix("unisono_graph::")?;
    if path.contains('<') { None } else { path.rsplit("::").next().map(str::to_owned) }
}

/// Returns an entry for each layer: its ops in short, and a hash of what it does with the values that come
/// from outside, whatever these are.
fn layers(graph: &Graph, ops: &[Hash], whole: &[Hash]) -> Vec<Entry> {
    let mut order: Vec<&str> = Vec::new();
    let mut layers: BTreeMap<&str, Layer> = BTreeMap::new();
    let mut local: Vec<Hash> = Vec::with_capacity(graph.nodes.len());
    let mut constant: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        let is_leaf = node.inputs.is_empty();
        constant.push(if is_leaf {
            leaf(graph, node).is_none()
        } else {
            node.inputs.iter().all(|&i| constant[i])
        });
        let mut hash = Sha256::new_with_prefix(ops[id]);
        for &i in &node.inputs {
            let i = origin(graph, i);
            let operand = &graph.nodes[i];
            match (operand.inputs.is_empty() || constant[i], operand.scope == node.scope) {
                (true, _) => hash.update(whole[i]),
                (false, true) => hash.update(local[i]),
                (false, false) => add(&mut hash, &operand.ty.to_string()),
            }
        }
        let hash: Hash = hash.finalize().into();
        local.push(hash);
        if is_leaf || constant[id] || same_value(node).is_some() {
            continue;
        }
        if !layers.contains_key(&*node.scope) {
            order.push(&node.scope);
        }
        layers.entry(&node.scope).or_default().add(graph, node, hash, &constant);
    }
    order.into_iter().filter_map(|scope| Some(layers.remove(scope)?.entry(scope))).collect()
}

/// What a layer computes.
#[derive(Default)]
struct Layer {
    hashes: BTreeSet<Hash>,
    text: Vec<String>,
    result: String,
}

impl Layer {
    fn add(&mut self, graph: &Graph, node: &Node, hash: Hash, constant: &[bool]) {
        if !self.hashes.insert(hash) {
            return;
        }
        let numbers = node.inputs.iter().filter(|&&i| constant[i]).flat_map(|&i| number(graph, i));
        let attrs = Some(node.op.attrs()).filter(|attrs| !attrs.is_empty());
        let details: Vec<String> = attrs.into_iter().chain(numbers).collect();
        let details = if details.is_empty() { String::new() } else { format!(" {}", details.join(" ")) };
        self.text.push(format!("{}{details}", node.op.name()));
        self.result = node.ty.to_string();
    }

    fn entry(self, scope: &str) -> Entry {
        let mut hash = Sha256::new();
        self.hashes.iter().for_each(|own| hash.update(own));
        let name = if scope.is_empty() { "outside of layers".to_owned() } else { format!("{scope:?}") };
        let text = format!("[{}] to {}", self.text.join(", "), self.result);
        Entry { name, text, hash: hex(&hash.finalize())[..16].to_owned() }
    }
}

/// Returns the number that a constant is, wherever it is repeated.
fn number(graph: &Graph, node: usize) -> Option<String> {
    let mut node = &graph.nodes[node];
    while let Some(&operand) = node.inputs.first() {
        node = &graph.nodes[operand];
    }
    node.op.downcast_ref().map(|ops::Constant(number)| number.to_string())
}
