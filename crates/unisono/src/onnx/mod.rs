//! Export to ONNX: the graph of a prediction as ONNX's operators, which other programs run.

mod nodes;
mod proto;

use std::ffi::OsStr;
use std::path::Path;

use unisono_checkpoint::{TensorDType, Tensors, WeightPrecision, scale_name, write_whole};
use unisono_graph::ops::{Constant, Input, State};
use unisono_graph::{Graph, InputDecl, InputKind, Lead, OutputKind, StateDecl};

use crate::Error;
use crate::compile::carries;
use crate::compile::prediction::PredictionProgram;
use crate::onnx::nodes::{Writer, is_input_type};
use crate::onnx::proto::{Attribute, FLOAT, FLOAT16, INT8, Proto};

/// The most bytes of a file: what Protocol Buffers hold.
const MOST: usize = (1 << 31) - 1;

/// The extensions of other files of a model, which an ONNX file must not replace.
const OTHERS: [&str; 3] = ["safetensors", "json", "keras"];

/// Writes a prediction as a file, with the weights in a precision.
///
/// # Errors
/// Those of [`WeightPrecision::store`]; a weight is larger than the precision holds; the model draws random
/// numbers, keeps memory on devices, or has an op of your own; it takes more than 2 GB; the file cannot be
/// written.
pub(crate) fn write(
    path: &Path,
    program: &PredictionProgram,
    tensors: &Tensors,
    precision: WeightPrecision,
) -> Result<(), Error> {
    let wrong = |problem: String| Error::setting("onnx", problem);
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if OTHERS.contains(&extension) {
        return Err(wrong(format!("{} is to be an ONNX file, whose name ends in .onnx", path.display())));
    }
    let stored = precision.store(tensors, &program.channels)?;
    if let Some((name, count)) = stored.overflowed.first() {
        return Err(wrong(format!("{count} values of {name} are larger than {precision:?} holds: use F32")));
    }
    let bytes = onnx(program, &stored.tensors).map_err(wrong)?;
    if bytes.len() > MOST {
        return Err(wrong(format!("{} bytes, but a file can have at most {MOST}", bytes.len())));
    }
    Ok(write_whole(path, &[&bytes])?)
}

/// Returns a prediction as the bytes of a file.
///
/// # Errors
/// Something has no counterpart; the error is the message.
fn onnx(program: &PredictionProgram, tensors: &Tensors) -> Result<Vec<u8>, String> {
    if program.program.is_resident() {
        return Err("the model keeps memory on devices, which a file cannot".into());
    }
    let graph: &Graph = &program.graph;
    let names = vec![String::new(); graph.nodes.len()];
    let mut writer = Writer { graph, proto: Proto::default(), names, batch_of: None, batch: None };
    let live = graph.live();
    declare_inputs(&mut writer, &live)?;
    for id in (0..graph.nodes.len()).filter(|id| live[*id]) {
        let op = &graph.nodes[id].op;
        writer.names[id] = if let Some(Input(index)) = op.downcast_ref() {
            input_name(&graph.inputs[*index])
        } else if let Some(State(index)) = op.downcast_ref() {
            weight(&mut writer.proto, &graph.states[*index], tensors)?
        } else if let Some(Constant(value)) = op.downcast_ref() {
            writer.proto.float(*value)
        } else {
            writer.node(id)?
        };
    }
    declare_outputs(&mut writer, program);
    Ok(writer.proto.finish("unisono"))
}

/// Adds the values of a state as they are stored. Returns the name of their f32 values: those of f16 are
/// cast, and i8 values are multiplied by their scales.
///
/// # Errors
/// There are no values; the error is the message.
fn weight(proto: &mut Proto, state: &StateDecl, tensors: &Tensors) -> Result<String, String> {
    let values = |name: &str| tensors.get(name).ok_or_else(|| format!("no values of {name:?}"));
    let (tensor, dims) = (values(&state.name)?, &state.ty.dims);
    let name = format!("weight {}", state.name);
    match tensor.dtype() {
        TensorDType::I8 => {
            proto.tensor(&name, dims, INT8, tensor.bytes());
            let scale = scale_name(&state.name);
            let scales = values(&scale)?;
            let scale = format!("weight {scale}");
            // A single scale has no axis.
            let axis = scales.shape().iter().position(|&count| count != 1);
            let channels: Vec<usize> = axis.iter().map(|&axis| scales.shape()[axis]).collect();
            proto.floats(&scale, &channels, scales.bytes());
            let axis: Vec<Attribute> = axis.iter().map(|&axis| Attribute::Int("axis", axis as i64)).collect();
            Ok(proto.node("DequantizeLinear", &[&name, &scale], &axis))
        }
        TensorDType::F16 => {
            proto.tensor(&name, dims, FLOAT16, tensor.bytes());
            Ok(proto.node("Cast", &[&name], &[Attribute::Int("to", FLOAT)]))
        }
        _ => {
            proto.floats(&name, dims, tensor.bytes());
            Ok(name)
        }
    }
}

/// Declares the graph's inputs. Random numbers that only a loss draws are none.
///
/// # Errors
/// The outputs draw random numbers, or an input has a type that files do not have; the error is the message.
fn declare_inputs(writer: &mut Writer<'_>, live: &[bool]) -> Result<(), String> {
    let graph = writer.graph;
    let is_read = |index: usize| {
        let reads = |id: usize| graph.nodes[id].op.downcast_ref().is_some_and(|Input(read)| *read == index);
        (0..graph.nodes.len()).any(|id| live[id] && reads(id))
    };
    for (index, input) in graph.inputs.iter().enumerate() {
        if input.kind == InputKind::Random {
            if is_read(index) {
                return Err(format!("the model draws {:?}, which a file cannot", input.name));
            }
            continue;
        }
        if !is_input_type(input.ty.dtype) {
            return Err(format!("the input {:?} is {}", input.name, input.ty));
        }
        let name = input_name(input);
        writer.proto.input(&name, &input.ty);
        if input.ty.lead == Lead::Sample {
            writer.batch_of.get_or_insert(name);
        }
    }
    Ok(())
}

/// Declares the graph's outputs: those of the model, and what the carries hold in the next batch.
fn declare_outputs(writer: &mut Writer<'_>, program: &PredictionProgram) {
    let graph = writer.graph;
    let of = |kind| graph.outputs.iter().filter(move |output| output.kind == kind);
    for (output, (name, ty)) in of(OutputKind::Value).zip(&program.outputs) {
        let is_taken = graph.inputs.iter().any(|input| input_name(input) == *name);
        let name = if is_taken { format!("{name} out") } else { name.clone() };
        writer.output(output.node, &name, ty);
    }
    for output in of(OutputKind::Carry) {
        writer.output(output.node, &carry_out(&output.name), &graph.nodes[output.node].ty);
    }
}

/// Returns the name of an input in the file.
fn input_name(input: &InputDecl) -> String {
    if input.kind == InputKind::Carry { carries::field(&input.name) } else { input.name.clone() }
}

/// Returns the name of the output that holds a carry's values for the next batch.
fn carry_out(name: &str) -> String {
    format!("{} out", carries::field(name))
}

#[cfg(test)]
mod tests;
