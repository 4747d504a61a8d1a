use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View};
use crate::values::{Array, Frame, Type};

/// A value as a gradient reads it: the same value, in a memory that it shares with others of its group
/// ([`crate::Tape::save_together`]).
#[derive(Debug, Clone, Serialize)]
pub struct Saved {
    /// The number of the group.
    pub(crate) group: usize,
    /// The place in the group.
    pub(crate) place: usize,
}

impl Op for Saved {
    fn name(&self) -> &'static str {
        "saved"
    }

    fn attrs(&self) -> String {
        format!("group={} place={}", self.group, self.place)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        Ok(inputs[0].clone())
    }

    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone())]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        inputs[0].clone()
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Reshape)
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "saved", cases }];

fn cases() -> Vec<Case> {
    vec![Case::random(Saved { group: 0, place: 0 }, &[Type::sample(&[3])])]
}
