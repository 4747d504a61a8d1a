//! Compares gradients with central differences, both computed by the f64 interpreter.

use unisono_graph::ops::Case;
use unisono_graph::{DType, Lead, interpret};

use crate::cases::{graph_of, values};

/// The step of the differences. With the interpreter's f64 it leaves an error of about its square.
const STEP: f64 = 1e-5;
/// The number of elements of each input that are tried, spread over the input.
const TRIED: usize = 25;

/// Compares the gradient of a weighted sum of a case's result with central differences, for shards of these
/// sizes.
///
/// Returns the largest error relative to the size of the gradient.
///
/// # Errors
/// A message if the case cannot be computed.
pub fn check_gradients(case: &Case, shards: &[usize]) -> Result<f64, String> {
    let graph = graph_of(case, |tape, inputs, y| {
        // Weights that differ from element to element, so that transposed gradients do not pass.
        let weights = tape.input("weights", y.ty().clone());
        let weighted = (&y * &weights).sum_all();
        let total = if weighted.ty().lead == Lead::Sample { weighted.sum_shards() } else { weighted };
        tape.output("total", &total);
        let floats: Vec<_> = inputs.iter().filter(|v| v.ty().dtype == DType::F32).cloned().collect();
        for (i, gradient) in tape.gradients(&total, &floats).iter().enumerate() {
            tape.output(&format!("d{i}"), gradient);
        }
    })
    .map_err(|e| e.to_string())?;
    let feed = values(case, &graph, shards);
    let outcome = interpret(&graph, &feed);
    let floats = (0..case.types.len()).filter(|&i| case.types[i].dtype == DType::F32);
    let mut worst = 0.0f64;
    for (order, input) in floats.enumerate() {
        let gradient = &outcome.outputs[&format!("d{order}")];
        let size = gradient.data.iter().fold(1.0f64, |m, g| m.max(g.abs()));
        let elements = feed.inputs[input].data.len();
        for element in (0..elements).step_by(elements.div_ceil(TRIED).max(1)) {
            let total = |shift: f64| {
                let mut moved = feed.clone();
                moved.inputs[input].data[element] += shift;
                interpret(&graph, &moved).outputs["total"].data[0]
            };
            let slope = (total(STEP) - total(-STEP)) / (2.0 * STEP);
            worst = worst.max((slope - gradient.data[element]).abs() / size);
        }
    }
    Ok(worst)
}
