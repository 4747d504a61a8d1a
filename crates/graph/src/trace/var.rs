//! Values of a traced graph.

use super::{NodeId, Op, Tape};
use crate::values::Type;

/// A value of a traced graph.
#[derive(Clone, Debug)]
pub struct Var {
    pub(super) tape: Tape,
    pub(super) id: NodeId,
    pub(super) ty: Type,
}

impl Var {
    /// Returns the value's element type, lead and shape.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// Returns the lengths of the value's axes without the batch.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// Returns the tape that the value was recorded on.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Returns the node of the value.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Applies an op to this value alone.
    pub fn apply(&self, op: impl Op) -> Var {
        self.tape.apply(op, &[self])
    }
}
