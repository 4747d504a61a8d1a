//! The batch of a step, and each replica's part of it.

use std::sync::Arc;

use unisono_gpu::Writer;
use unisono_graph::{InputDecl, InputKind, Lead, Program, RandomKey, Slot};

use crate::batch::held::Held;

/// A batch of samples, as the inputs of a program.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// The number of samples.
    pub rows: usize,
    /// The bytes of each of the program's inputs, little-endian. Inputs with samples have a row for each
    /// sample, in sample order; the others are whole. [`InputKind::Random`] inputs are empty.
    pub inputs: Vec<Arc<[u8]>>,
    /// The key by which random ops draw. Its position is that of the first sample.
    pub random: RandomKey,
    /// The rows that `inputs` have, where a machine of several has a part of the batch. Default: none, which
    /// means all rows.
    pub held: Option<Held>,
}

impl Feed {
    /// Writes rows `first..first + rows` of an input of a program, or of all its scalars, to their upload.
    pub(crate) fn write(
        &self,
        program: &Program,
        slot: Slot,
        first: usize,
        rows: usize,
        to: &mut Writer<'_>,
    ) {
        let mut input = |i: usize| self.write_input(&program.inputs()[i], i, first, rows, to);
        match slot {
            Slot::Scalars => program.scalars().iter().for_each(|&i| input(i)),
            Slot::Input(i) => input(i),
            _ => {}
        }
    }

    fn write_input(&self, decl: &InputDecl, index: usize, first: usize, rows: usize, to: &mut Writer<'_>) {
        let Some(bytes) = self.inputs.get(index) else { return };
        match (decl.kind, decl.ty.lead) {
            (InputKind::Random, _) => {
                let key = RandomKey { position: self.random.position + first as u64, ..self.random };
                to.write(bytemuck::cast_slice(&key.words().map(u32::to_le)));
            }
            (InputKind::Resident(_), _) => {}
            (InputKind::Data | InputKind::Carry, Lead::Global) => to.write(bytes),
            (InputKind::Data | InputKind::Carry, _) => {
                let row = 4 * decl.ty.count();
                self.rows_of(index, row, first..first + rows, &mut |part| to.write(part));
            }
        }
    }
}
