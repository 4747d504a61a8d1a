//! What adapters are compared on: every op with its gradient, and every layer, loss and optimizer that the
//! oracle's suites know.

use std::path::Path;

use unisono_graph::ops::REGISTRY;
use unisono_graph::{DType, Tape, Var};
use unisono_testkit::{graph_of, prepare};

use super::Subject;
use crate::conformance::{self, Suite};

/// The sizes of the shards. They are ragged, and one sum over samples has several shards.
const SHARDS: [usize; 3] = [3, 2, 1];

/// Returns every case of every op, and the gradients of those that have some.
///
/// # Errors
/// A case cannot be traced.
pub fn ops() -> Result<Vec<Subject>, String> {
    let mut all = Vec::new();
    for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
        for (index, case) in (entry.cases)().iter().enumerate() {
            let name = format!("op {}/{index}", entry.name);
            let prepared = prepare(case, &SHARDS).map_err(|error| format!("{name}: {error}"))?;
            let graph = graph_of(case, differentiated).map_err(|error| format!("{name}: {error}"))?;
            all.push(Subject { name: format!("gradient of {name}"), graph, feed: prepared.feed.clone() });
            all.push(Subject { name, graph: prepared.graph, feed: prepared.feed });
        }
    }
    Ok(all)
}

/// Adds the gradients of the sum of squares of a result as outputs.
fn differentiated(tape: &Tape, inputs: &[Var], y: Var) {
    let sum = y.square().sum_all();
    let sum = if sum.ty() == &unisono_graph::Type::global(&[]) { sum } else { sum.sum_shards() };
    tape.output("y", &sum);
    let floats: Vec<Var> = inputs.iter().filter(|x| x.ty().dtype == DType::F32).cloned().collect();
    for (index, gradient) in tape.gradients(&sum, &floats).iter().enumerate() {
        tape.output(&format!("d{index}"), gradient);
    }
}

/// Returns the cases of the suites of a directory, each with its gradients: layers, losses, metrics, and the
/// steps of optimizers. Cases that are whole trainings are left to [`super::models`].
///
/// # Errors
/// A suite cannot be read, or a case cannot be traced.
pub fn suites(dir: &Path) -> Result<Vec<Subject>, String> {
    let mut all = Vec::new();
    for suite in Suite::all(dir)? {
        for case in suite.cases.iter().filter(|case| case.op != "train") {
            let steps = conformance::steps(case).map_err(|error| format!("{}: {error}", case.name))?;
            all.extend(steps.into_iter().enumerate().map(|(step, (graph, feed))| Subject {
                name: format!("{} {}, step {step}", suite.name, case.name),
                graph,
                feed,
            }));
        }
    }
    Ok(all)
}
