//! What makes results canonical, and keeps a compiler from computing with constants.

use unisono_shaders::snippets;

use super::writer::Writer;
use crate::trace::{Lowering, NodeId, State};
use crate::values::DType;

impl Writer<'_> {
    /// Returns the expression of a value with a canonical result.
    pub(super) fn flushed(&mut self, id: NodeId, text: String) -> String {
        if self.ty(id).dtype != DType::F32 {
            return text;
        }
        self.snippets.insert(snippets::FLUSH);
        format!("flush({text})")
    }

    /// Returns whether a value in memory is what a step brings, which may be anything. All others are
    /// results of ops, or states, which are canonical from the start ([`crate::tree::canonical_bytes`]).
    pub(super) fn is_brought(&self, id: NodeId) -> bool {
        let is_state = self.graph.nodes[id].op.downcast_ref::<State>().is_some();
        matches!(self.fusion.lowering[id], Lowering::Leaf) && !is_state
    }

    /// Returns whether a value is the same number everywhere, whatever a step brings.
    pub(super) fn is_constant(&self, id: NodeId) -> bool {
        match &self.fusion.lowering[id] {
            Lowering::Constant(_) => true,
            Lowering::View(_) => self.is_constant(self.input(id, 0)),
            _ => false,
        }
    }
}
