//! Turns a case of the op registry into a graph with values.

use std::sync::Arc;

use unisono_graph::ops::Case;
use unisono_graph::{Array, DType, Feed, Frame, Graph, GraphError, Lead, Op, Tape, Var};
use unisono_random::Draws;

/// A graph, and the values of its inputs.
#[derive(Debug)]
pub struct Prepared {
    /// The graph. It has one output `y`, which is global or has a value for each sample.
    pub graph: Graph,
    /// The values of its inputs.
    pub feed: Feed,
}

/// Returns the graph of a case: each operand is an input, and the result is the output `y`.
///
/// An operand with a value for each shard is made by summing an input over samples. A result with a value for
/// each shard is summed over the shards.
pub fn graph_of(case: &Case, finish: impl Fn(&Tape, &[Var], Var)) -> Result<Graph, GraphError> {
    let tape = Tape::new();
    let mut inputs = Vec::new();
    let operands: Vec<Var> = case
        .types
        .iter()
        .enumerate()
        .map(|(i, ty)| match ty.lead {
            Lead::Shard => {
                let samples = tape.input(&format!("x{i}"), ty.with_lead(Lead::Sample));
                inputs.push(samples.clone());
                samples.sum_samples()
            }
            _ => {
                inputs.push(tape.input(&format!("x{i}"), ty.clone()));
                inputs[i].clone()
            }
        })
        .collect();
    let y = tape.apply_dyn(Arc::clone(&case.op) as Arc<dyn Op>, &operands.iter().collect::<Vec<_>>());
    let y = if y.ty().lead == Lead::Shard { y.sum_shards() } else { y };
    finish(&tape, &inputs, y.to_f32());
    tape.finish()
}

/// Returns a case with values for shards of these sizes. Values that the case leaves open are drawn from
/// [-1, 1).
pub fn prepare(case: &Case, shards: &[usize]) -> Result<Prepared, GraphError> {
    let graph = graph_of(case, |tape, _, y| tape.output("y", &y))?;
    let feed = values(case, &graph, shards);
    Ok(Prepared { graph, feed })
}

/// Returns the values of the inputs of a case's graph.
pub(crate) fn values(case: &Case, graph: &Graph, shards: &[usize]) -> Feed {
    let frame = Frame { shards: shards.to_vec() };
    let array = |(index, input): (usize, &unisono_graph::InputDecl)| {
        let dims = frame.dims(&input.ty);
        let mut draws = Draws::of(7, "case", &format!("{}/{index}", case.op.name()), 0, 0);
        let given = case.values.get(index).and_then(Option::as_ref);
        let mut at = 0;
        Array::generate(&dims, |_| {
            at += 1;
            match given {
                Some(values) => values[(at - 1) % values.len()],
                None if input.ty.dtype == DType::F32 => f64::from(draws.range(-1.0, 1.0)),
                None => f64::from(draws.below(4)),
            }
        })
    };
    let inputs = graph.inputs.iter().enumerate().map(array).collect();
    Feed { frame, inputs, states: vec![] }
}
