//! What a step brings, and each replica's part of it.

use std::sync::Arc;

use unisono_gpu::Writer;
use unisono_graph::{InputDecl, InputKind, Lead, RandomKey};

/// A batch.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// Samples.
    pub rows: usize,
    /// One for each of [`Program::inputs`], little-endian: those with samples a row for each, in sample order, the others
    /// whole. [`InputKind::Random`] inputs are empty.
    pub inputs: Vec<Arc<[u8]>>,
    /// What random ops draw by; the position is that of the first sample.
    pub random: RandomKey,
}

impl Feed {
    /// Uploads rows `first..first + rows` of an input.
    pub(crate) fn write(
        &self,
        decl: &InputDecl,
        index: usize,
        first: usize,
        rows: usize,
        to: &mut Writer<'_>,
    ) {
        let Some(bytes) = self.inputs.get(index) else { return };
        match (decl.kind, decl.ty.lead) {
            (InputKind::Random, _) => {
                let key = RandomKey { position: self.random.position + first as u64, ..self.random };
                to.write(bytemuck::cast_slice(&key.words().map(u32::to_le)));
            }
            (InputKind::Data | InputKind::Carry, Lead::Global) => to.write(bytes),
            (InputKind::Data | InputKind::Carry, _) => {
                let row = 4 * decl.ty.count();
                if let Some(part) = bytes.get(first * row..(first + rows) * row) {
                    to.write(part);
                }
            }
        }
    }
}
