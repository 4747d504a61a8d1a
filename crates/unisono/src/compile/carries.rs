//! Carries in the programs: what samples hand from one batch to the next is an input and an output of each
//! graph.

use unisono_graph::{OutputKind, Program, Tape};

use crate::Context;

/// Makes what a model keeps an output of its graph.
pub(crate) fn trace(tape: &Tape, cx: &Context) {
    let kept = cx.carries().iter().filter_map(|carry| Some((&carry.var, carry.kept.as_ref()?)));
    kept.for_each(|(carry, value)| tape.keep(carry, value));
}

/// Returns the name of the field of a batch that holds the values of a carry. No program takes a
/// field of the loader by such a name.
pub(crate) fn field(name: &str) -> String {
    format!("carry {name}")
}

/// Returns the first carry that would only be known when the step is already committed.
pub(crate) fn too_late(program: &Program) -> Option<&str> {
    let last = program.segments() - 1;
    let late = |segment: usize| segment == last;
    let carries = program.outputs().iter().filter(|output| output.kind == OutputKind::Carry);
    carries.filter(|output| late(output.segment)).map(|output| &*output.name).next()
}
