//! Carries in the programs: what samples hand from one batch to the next is an input and an output of each
//! graph.

use unisono_graph::{Program, Tape};

use crate::Context;
use crate::model::context::CARRY;

/// Makes what a model keeps an output of its graph.
pub(crate) fn trace(tape: &Tape, cx: &Context) {
    let kept = cx.carries().iter().filter_map(|carry| Some((&carry.name, carry.kept.as_ref()?)));
    kept.for_each(|(name, value)| tape.output(name, value));
}

/// Returns the first carry that would only be known when the step is already committed.
pub(crate) fn too_late(program: &Program) -> Option<&str> {
    let late = |segment: usize| segment + 1 == program.segments();
    let carries = program.outputs().iter().filter(|output| output.name.starts_with(CARRY));
    carries.filter(|output| late(output.segment)).map(|output| &output.name[CARRY.len()..]).next()
}
