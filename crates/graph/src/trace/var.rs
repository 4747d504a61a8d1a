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
    /// Element type, lead and shape.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// The axes without the batch.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// The tape it was recorded on.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Its node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Applies an op to this value alone.
    pub fn apply(&self, op: impl Op + 'static) -> Var {
        self.tape.apply(op, &[self])
    }
}
