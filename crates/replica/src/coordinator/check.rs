//! Checks a batch before a step takes it.

use unisono_graph::{InputDecl, InputKind, Lead, Program};

use crate::batch::feed::Feed;
use crate::error::ReplicaError;

impl Feed {
    /// Checks that a program can take the batch.
    pub(crate) fn check(&self, program: &Program, global_batch: usize) -> Result<(), ReplicaError> {
        if !(1..=global_batch).contains(&self.rows) {
            return Err(ReplicaError::Rows { rows: self.rows, global_batch });
        }
        let declared = program.inputs();
        if declared.len() != self.inputs.len() {
            return Err(ReplicaError::Inputs { given: self.inputs.len(), wanted: declared.len() });
        }
        let rows = self.held.as_ref().map_or(self.rows, |held| held.rows().len());
        for (decl, bytes) in declared.iter().zip(&self.inputs) {
            let (given, wanted) = (bytes.len(), expected_bytes(decl, rows));
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
}

/// Returns the bytes of an input for a batch of so many samples.
fn expected_bytes(decl: &InputDecl, rows: usize) -> usize {
    match (decl.kind, decl.ty.lead) {
        (InputKind::Random | InputKind::Resident(_), _) => 0,
        (InputKind::Data | InputKind::Carry, Lead::Global) => 4 * decl.ty.count(),
        (InputKind::Data | InputKind::Carry, _) => 4 * decl.ty.count() * rows,
    }
}
