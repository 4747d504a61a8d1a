//! What makes results canonical, and keeps a compiler from computing with constants.

use unisono_shaders::snippets;

use super::writer::Writer;
use crate::trace::{Lowering, NodeId};
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

    /// Returns whether a value is the same number everywhere, whatever a step brings.
    pub(super) fn is_constant(&self, id: NodeId) -> bool {
        match &self.fusion.lowering[id] {
            Lowering::Constant(_) => true,
            Lowering::View(_) => self.is_constant(self.input(id, 0)),
            _ => false,
        }
    }
}
