//! Predictions: a model's outputs alone, by their names.

use unisono_graph::{DType, Graph, GraphError, Lead, OutputKind, Tape, Type, drop_unread_inputs};

use crate::compile::carries;
use crate::compile::fields::Fields;
use crate::compile::parts::Parts;
use crate::compile::programs::measured::has_samples;
use crate::compile::programs::{Given, check};
use crate::model::context::Mode;
use crate::model::functional::{Inputs, OUTPUT, Outputs};
use crate::{Context, Error};

/// Traces a prediction, which takes what the model's outputs depend on alone.
pub(super) fn trace_predict(parts: &Parts, fields: &Fields, given: Given<'_>) -> Result<Graph, Error> {
    let tape = Tape::with_precision(parts.precision);
    let mut cx = Context::new(&tape, Mode::Evaluate);
    cx.give(given.declare(&tape)?);
    let inputs = Inputs::new(&tape, fields.iter());
    declare_predictions(&tape, &parts.model.forward(&mut cx, &inputs))?;
    carries::trace(&tape, &cx);
    Ok(drop_unread_inputs(&tape.finish()?))
}

/// Declares a model's outputs as those of a prediction. Returns their names and types. What is the same for
/// all samples is repeated for each, so that a row does not depend on the batch that it is in.
///
/// # Errors
/// The first error of the model; two outputs of one name; an output that is made of all samples of a batch,
/// or that has no numbers.
pub(crate) fn declare_predictions(tape: &Tape, outputs: &Outputs) -> Result<Vec<(String, Type)>, GraphError> {
    check(tape)?;
    let mut declared: Vec<(String, Type)> = Vec::new();
    for (name, output) in outputs.iter() {
        let fail = |problem: String| tape.fail_here("model", format!("the output {name:?} {problem}"));
        let ty = output.ty();
        if declared.iter().any(|(own, _)| own == name) {
            fail("is there twice".into());
        } else if ty.lead == Lead::Shard || has_samples(&tape.finish()?, output) {
            fail("depends on all samples of a batch, so there is none for a single sample".into());
        } else if !matches!(ty.dtype, DType::F32 | DType::I32) {
            fail(format!("is {ty}, which is no number"));
        }
        check(tape)?;
        let output = output.expand(Lead::Sample, &ty.dims);
        tape.output(&predicted(name), &output);
        declared.push((name.to_owned(), output.ty().clone()));
    }
    Ok(declared)
}

/// Returns the name that a model's output has among those of the program that predicts.
pub(crate) fn predicted(output: &str) -> String {
    if output == OUTPUT { OUTPUT.to_owned() } else { format!("{OUTPUT} {output}") }
}

/// Returns the names and types of the model's outputs in the graph of a prediction.
pub(super) fn predictions_of(graph: &Graph) -> Vec<(String, Type)> {
    let values = graph.outputs.iter().filter(|output| output.kind == OutputKind::Value);
    let own_name = |name: &str| name.strip_prefix(OUTPUT)?.strip_prefix(' ').map(str::to_owned);
    let named = values.map(|output| {
        let name = own_name(&output.name).unwrap_or_else(|| output.name.clone());
        (name, graph.nodes[output.node].ty.clone())
    });
    named.collect()
}
