//! Checks a batch before a step takes it.

use std::sync::Arc;

use unisono_graph::{InputDecl, InputKind, Lead, Program};

use crate::batch::feed::Feed;
use crate::error::ReplicaError;

impl Feed {
    /// Checks that a program can take the batch.
    pub(crate) fn check(&self, program: &Program, global_batch: usize) -> Result<(), ReplicaError> {
        if !(1..=global_batch).contains(&self.rows) {
            return Err(ReplicaError::Rows { rows: self.rows, global_batch });
        }
        let rows = self.held.as_ref().map_or(self.rows, |held| held.rows().len());
        check_inputs(program, &self.inputs, rows)
    }
}

/// Checks that inputs have the sizes that a program needs for this number of samples.
pub(crate) fn check_inputs(program: &Program, inputs: &[Arc<[u8]>], rows: usize) -> Result<(), ReplicaError> {
    let declared = program.inputs();
    if declared.len() != inputs.len() {
        return Err(ReplicaError::Inputs { given: inputs.len(), wanted: declared.len() });
    }
    for (decl, bytes) in declared.iter().zip(inputs) {
        let (given, wanted) = (bytes.len(), expected_bytes(decl, rows));
        if given != wanted {
            let (name, ty) = (decl.name.clone(), decl.ty.to_string());
            return Err(ReplicaError::Input { name, ty, given, wanted });
        }
    }
    Ok(())
}

/// Returns the bytes of an input for a batch of this many samples.
fn expected_bytes(decl: &InputDecl, rows: usize) -> usize {
    match (decl.kind, decl.ty.lead) {
        (InputKind::Random | InputKind::Resident(_), _) => 0,
        (InputKind::Data | InputKind::Carry, Lead::Global) => 4 * decl.ty.count(),
        (InputKind::Data | InputKind::Carry, _) => 4 * decl.ty.count() * rows,
    }
}
