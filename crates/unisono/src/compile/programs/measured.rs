//! What metrics measure of each sample.

use unisono_graph::{DType, Graph, GraphError, Lead, Lowering, Tape, Type, Var};

use crate::Metric;
use crate::compile::programs::{LOSS_WEIGHT, check};

/// The name of the output with each sample's weight in one of several losses, if these have other weights.
pub(crate) fn weight_of_loss(number: usize) -> String {
    format!("{LOSS_WEIGHT} {number}")
}

/// The name of the output with the weights that the data give the samples of one of the model's outputs.
pub(crate) fn weight_of_output(output: &str) -> String {
    format!("weight of the output {output}")
}

/// Returns what a metric measures as a number for each sample, or as several where it has a reduction of its
/// own. One number that depends on no sample is that of every sample. Everything else is an error, because
/// what is made of it would depend on the batch size.
pub(super) fn measured(tape: &Tape, metric: &dyn Metric, value: Var) -> Var {
    let fail = |problem| tape.fail(op_of_metric(metric, problem));
    let reduces = metric.reduction().is_some();
    match value.ty() {
        ty if reduces && ty.lead == Lead::Sample && ty.dtype == DType::F32 => value,
        ty if ty == &Type::sample(&[]) => value,
        ty if ty == &Type::global(&[]) => {
            if tape.finish().is_ok_and(|graph| has_samples(&graph, &value)) {
                fail("gives a sum over all samples of a batch, not a number for each sample".into());
            }
            value.expand(Lead::Sample, &[])
        }
        ty => {
            let expected = match reduces {
                true => "numbers of each sample, which are [B, ...]",
                false => "a number for each sample, which is [B]",
            };
            fail(format!("gives {ty}, not {expected}"));
            value
        }
    }
}

/// Refuses a metric that takes a sum over the batch by itself. An output that does is refused where it is
/// predicted.
pub(super) fn measures_samples_alone(
    tape: &Tape,
    metric: &dyn Metric,
    each: &Var,
    output: &Var,
) -> Result<(), GraphError> {
    check(tape)?;
    let graph = tape.finish()?;
    if has_samples(&graph, each) && !has_samples(&graph, output) {
        let problem = "depends on a sum over all samples of a batch, so a sample has none of its own";
        tape.fail(op_of_metric(metric, problem.into()));
    }
    Ok(())
}

/// Returns the error of a metric.
fn op_of_metric(metric: &dyn Metric, problem: String) -> GraphError {
    GraphError::Op { scope: "metric".into(), op: metric.name().to_owned(), problem }
}

/// Returns whether a value depends on a sum over samples: a global value on any sample, and that of a sample
/// on others.
pub(super) fn has_samples(graph: &Graph, value: &Var) -> bool {
    let mut depends = vec![false; value.id() + 1];
    for (id, node) in graph.nodes[..=value.id()].iter().enumerate() {
        depends[id] = matches!(node.op.lowering(), Lowering::SumShards)
            || node.inputs.iter().any(|&input| depends[input]);
    }
    depends[value.id()]
}
