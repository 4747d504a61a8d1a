//! What a step brings, and each replica's part of it.

use std::sync::Arc;

use unisono_gpu::Writer;
use unisono_graph::{InputDecl, InputKind, Lead, Program, RandomKey};

use crate::error::ReplicaError;

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
    /// Whether a program can take it.
    pub(crate) fn check(&self, program: &Program, global_batch: usize) -> Result<(), ReplicaError> {
        if !(1..=global_batch).contains(&self.rows) {
            return Err(ReplicaError::Rows { rows: self.rows, global_batch });
        }
        let declared = program.inputs();
        if declared.len() != self.inputs.len() {
            return Err(ReplicaError::Inputs { given: self.inputs.len(), wanted: declared.len() });
        }
        for (decl, bytes) in declared.iter().zip(&self.inputs) {
            let (given, wanted) = (bytes.len(), expected_bytes(decl, self.rows));
            if given != wanted {
                return Err(ReplicaError::Input {
                    name: decl.name.clone(),
                    ty: decl.ty.to_string(),
                    given,
                    wanted,
                });
            }
        }
        Ok(())
    }

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

fn expected_bytes(decl: &InputDecl, rows: usize) -> usize {
    match (decl.kind, decl.ty.lead) {
        (InputKind::Random, _) => 0,
        (InputKind::Data | InputKind::Carry, Lead::Global) => 4 * decl.ty.count(),
        (InputKind::Data | InputKind::Carry, _) => 4 * decl.ty.count() * rows,
    }
}
