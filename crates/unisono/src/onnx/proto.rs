//! The messages of an ONNX file.

use unisono_graph::{DType, Lead, Type};

use crate::protobuf::Message;

/// The version of the format.
const IR_VERSION: i64 = 8;
/// The version of the operators.
const OPSET: i64 = 17;
/// The name of the axis that counts the samples.
const BATCH: &str = "N";

/// The number of a type of elements.
pub(super) const FLOAT: i64 = 1;
pub(super) const INT8: i64 = 3;
pub(super) const INT32: i64 = 6;
pub(super) const INT64: i64 = 7;
pub(super) const BOOL: i64 = 9;
pub(super) const FLOAT16: i64 = 10;

/// An attribute of a node.
pub(super) enum Attribute {
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
}

/// A graph that is written node by node.
#[derive(Default)]
pub(super) struct Proto {
    nodes: Vec<Message>,
    initializers: Vec<Message>,
    inputs: Vec<Message>,
    outputs: Vec<Message>,
    /// The number of names that were made so far.
    names: usize,
}

impl Proto {
    /// Returns a name that no other value has.
    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("unisono/{}", self.names)
    }

    /// Adds a node with one output, and returns the output's name.
    pub fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute]) -> String {
        let output = self.name();
        self.node_as(op, inputs, &output, attributes);
        output
    }

    /// Adds a node whose output has this name.
    pub fn node_as(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Attribute]) {
        let node = inputs.iter().fold(Message::new(), |node, input| node.bytes(1, input));
        let node = node.bytes(2, output).bytes(3, format!("{op} {output}")).bytes(4, op);
        let node = attributes.iter().fold(node, |node, attribute| {
            let message = match attribute {
                Attribute::Int(name, value) => {
                    Message::new().bytes(1, name).integer(3, *value).integer(20, 2)
                }
                Attribute::Ints(name, values) => {
                    let list = Message::new().bytes(1, name);
                    values.iter().fold(list, |list, value| list.integer(8, *value)).integer(20, 7)
                }
            };
            node.message(5, &message)
        });
        self.nodes.push(node);
    }

    /// Adds numbers of f32 under a name.
    pub fn floats(&mut self, name: &str, dims: &[usize], bytes: &[u8]) {
        self.tensor(name, dims, FLOAT, bytes);
    }

    /// Adds one number, and returns its name.
    pub fn float(&mut self, value: f32) -> String {
        let name = self.name();
        self.floats(&name, &[], &value.to_le_bytes());
        name
    }

    /// Adds a list of integers, and returns its name.
    pub fn ints(&mut self, dims: &[usize], values: &[i64]) -> String {
        let name = self.name();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(&name, dims, INT64, &bytes);
        name
    }

    /// Adds a vector of integers, and returns its name.
    pub fn list(&mut self, values: &[i64]) -> String {
        self.ints(&[values.len()], values)
    }

    /// Adds integers of 32 bits, and returns their name.
    pub fn int32s(&mut self, dims: &[usize], values: &[i32]) -> String {
        let name = self.name();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(&name, dims, INT32, &bytes);
        name
    }

    /// Adds the elements of a tensor under a name.
    pub fn tensor(&mut self, name: &str, dims: &[usize], dtype: i64, bytes: &[u8]) {
        let tensor = dims.iter().fold(Message::new(), |tensor, dim| tensor.integer(1, *dim as i64));
        self.initializers.push(tensor.integer(2, dtype).bytes(8, name).bytes(9, bytes));
    }

    /// Declares an input of the graph.
    pub fn input(&mut self, name: &str, ty: &Type) {
        self.inputs.push(value_info(name, ty));
    }

    /// Declares an output of the graph.
    pub fn output(&mut self, name: &str, ty: &Type) {
        self.outputs.push(value_info(name, ty));
    }

    /// Returns the bytes of the file.
    pub fn finish(self, name: &str) -> Vec<u8> {
        let graph = self.nodes.iter().fold(Message::new(), |graph, node| graph.message(1, node));
        let graph =
            self.initializers.iter().fold(graph.bytes(2, name), |graph, tensor| graph.message(5, tensor));
        let graph = self.inputs.iter().fold(graph, |graph, input| graph.message(11, input));
        let graph = self.outputs.iter().fold(graph, |graph, output| graph.message(12, output));
        let opset = Message::new().bytes(1, "").integer(2, OPSET);
        let model = Message::new().integer(1, IR_VERSION).bytes(2, "unisono");
        let model = model.bytes(3, env!("CARGO_PKG_VERSION")).message(7, &graph).message(8, &opset);
        model.as_bytes().to_vec()
    }
}

/// Describes an input or output. The batch comes first, if the value has samples.
fn value_info(name: &str, ty: &Type) -> Message {
    let dtype = if ty.dtype == DType::F32 { FLOAT } else { INT32 };
    let batch = (ty.lead == Lead::Sample).then(|| Message::new().bytes(2, BATCH));
    let dims = ty.dims.iter().map(|dim| Message::new().integer(1, *dim as i64));
    let shape = batch.into_iter().chain(dims).fold(Message::new(), |shape, dim| shape.message(1, &dim));
    let tensor = Message::new().integer(1, dtype).message(2, &shape);
    Message::new().bytes(1, name).message(2, &Message::new().message(1, &tensor))
}
