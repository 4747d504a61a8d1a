//! Reductions along rows: what one turn of the loop over a row's slabs executes for each element.

use unisono_graph::plan::Kernel;

use super::assembly::{Loop, loops};

/// The elements that an invocation stages, and the elements that it adds up, in a turn.
const ELEMENTS: u32 = 32;

/// The bytes that an invocation loads from workgroup memory in a turn, at least.
const LEAST_BYTES: u32 = 4 * ELEMENTS;

/// The instructions of an op of f32 with the flush of its result.
const OP: f64 = 4.0;

/// A reduction of rows that are staged in workgroup memory.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    /// The instructions for each element.
    pub instructions: f64,
    /// Those among them that compute the element from what is loaded, as far as they are ops of f32.
    pub expression: f64,
    /// Whether the expression calls an elementary function.
    pub has_functions: bool,
}

/// Returns the reductions of a kernel in their order. Returns `None` if its machine code has not one loop for
/// each loop of its text.
pub fn reductions(kernel: &Kernel, assembly: &str) -> Option<Vec<Reduction>> {
    let stages = |own: &Loop| own.mix.workgroup_bytes >= LEAST_BYTES;
    let mut found: Vec<Loop> = loops(assembly).into_iter().filter(stages).collect();
    found.sort_by_key(|own| own.range);
    let texts: Vec<&str> = kernel.wgsl.split("for (var slab").skip(1).collect();
    (texts.len() == found.len()).then_some(())?;
    let one = |(text, own): (&&str, &Loop)| {
        let body = text.split("staged[").next().unwrap_or_default();
        let ops = body.matches("flush(").count() as f64 / 4.0;
        Reduction {
            instructions: f64::from(own.mix.instructions) / f64::from(ELEMENTS),
            expression: OP * ops,
            has_functions: ["exp_(", "log_(", "tanh_(", "erf_("].iter().any(|name| body.contains(name)),
        }
    };
    Some(texts.iter().zip(&found).map(one).collect())
}
