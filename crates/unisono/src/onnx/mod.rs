//! Export to ONNX: the graph of a prediction as ONNX's operators, which other programs run.

mod nodes;
mod proto;

use std::path::Path;

use unisono_checkpoint::Tensors;
use unisono_graph::ops::{Constant, Input, State};
use unisono_graph::{Graph, InputKind, Lead, OutputKind};

use crate::Error;
use crate::compile::prediction::PredictionProgram;
use crate::onnx::nodes::{Writer, is_input_type};
use crate::onnx::proto::Proto;

/// The most bytes of a file: what Protocol Buffers hold.
const MOST: usize = (1 << 31) - 1;

/// Writes a prediction as a file.
///
/// # Errors
/// The model carries something from batch to batch, or has an op of one's own; it takes more than 2 GB; the
/// file cannot be written.
pub(crate) fn write(path: &Path, program: &PredictionProgram, tensors: &Tensors) -> Result<(), Error> {
    let wrong = |problem: String| Error::setting("onnx", problem);
    let bytes = onnx(program, tensors).map_err(wrong)?;
    if bytes.len() > MOST {
        return Err(wrong(format!("{} bytes, where a file holds up to {MOST}", bytes.len())));
    }
    std::fs::write(path, bytes).map_err(|error| wrong(format!("{}: {error}", path.display())))
}

/// Returns a prediction as the bytes of a file.
///
/// # Errors
/// Something has no counterpart; the error is the message.
fn onnx(program: &PredictionProgram, tensors: &Tensors) -> Result<Vec<u8>, String> {
    let graph: &Graph = &program.graph;
    let names = vec![String::new(); graph.nodes.len()];
    let mut writer = Writer { graph, proto: Proto::default(), names, batch_of: None, batch: None };
    if let Some(input) = graph.inputs.iter().find(|input| input.kind != InputKind::Data) {
        return Err(format!("the model carries or draws {:?}, which a file cannot", input.name));
    }
    for input in &graph.inputs {
        if !is_input_type(input.ty.dtype) {
            return Err(format!("the input {:?} is {}", input.name, input.ty));
        }
        writer.proto.input(&input.name, &input.ty);
        if input.ty.lead == Lead::Sample {
            writer.batch_of.get_or_insert_with(|| input.name.clone());
        }
    }
    let live = graph.live();
    for id in (0..graph.nodes.len()).filter(|id| live[*id]) {
        let op = &graph.nodes[id].op;
        writer.names[id] = if let Some(Input(index)) = op.downcast_ref() {
            graph.inputs[*index].name.clone()
        } else if let Some(State(index)) = op.downcast_ref() {
            let state = &graph.states[*index];
            let tensor = tensors.get(&state.name).ok_or_else(|| format!("no values of {:?}", state.name))?;
            let name = format!("weight {}", state.name);
            writer.proto.floats(&name, &state.ty.dims, tensor.bytes());
            name
        } else if let Some(Constant(value)) = op.downcast_ref() {
            writer.proto.float(*value)
        } else {
            writer.node(id)?
        };
    }
    let outputs = graph.outputs.iter().filter(|output| output.kind == OutputKind::Value);
    for (output, (name, ty)) in outputs.zip(&program.outputs) {
        let from = writer.names[output.node].clone();
        let is_taken = graph.inputs.iter().any(|input| input.name == *name);
        let name = if is_taken { format!("{name} out") } else { name.clone() };
        writer.proto.node_as("Identity", &[&from], &name, &[]);
        writer.proto.output(&name, ty);
    }
    Ok(writer.proto.finish("unisono"))
}

#[cfg(test)]
mod tests;
