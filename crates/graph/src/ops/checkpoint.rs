use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View};
use crate::values::{Array, Frame, Type};

/// A value that activation checkpointing computes from: the same value, which is taken to be there only after
/// another one is.
///
/// What [`crate::Tape::recompute`] computes from it a second time is so kept apart from what was computed the
/// first time, and is computed late. The second operand is the value to wait for.
#[derive(Debug, Clone, Serialize)]
pub struct Checkpoint;

impl Op for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        if inputs.len() == 2 { Ok(inputs[0].clone()) } else { Err("takes a value and one to wait for".into()) }
    }

    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone()), None]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        inputs[0].clone()
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Reshape)
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "checkpoint", cases }];

fn cases() -> Vec<Case> {
    vec![Case::random(Checkpoint, &[Type::sample(&[3]), Type::sample(&[2])])]
}
