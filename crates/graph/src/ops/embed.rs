use serde::Serialize;

use crate::ops::EmbedGradient;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, DType, Frame, Lead, Type};

/// `[rows, width]` and ids `[B, ...]` give `[B, ..., width]`: the table's row for each id (PyTorch's and
/// Keras's `Embedding`). An id outside of the table reads the last row; the code that feeds ids must check
/// them.
#[derive(Debug, Clone, Serialize)]
pub struct Embed;

impl Op for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (table, ids) = (inputs[0], inputs[1]);
        let fits = table.lead == Lead::Global
            && table.dims.len() == 2
            && table.dims[0] > 0
            && table.dtype == DType::F32
            && ids.dtype == DType::I32;
        let dims = || ids.dims.iter().copied().chain([table.dims[1]]).collect::<Vec<_>>();
        let problem = || format!("needs an f32 table of rows and i32 ids, got {table} and {ids}");
        fits.then(|| ids.with_dims(&dims()).of(DType::F32)).ok_or_else(problem)
    }

    /// The gradient of a row is the sum over the places that named it, in the order of (sample, position). It
    /// is a sum and therefore one of f32 numbers, whatever the tape's precision.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let (table, ids) = (&x[0], &x[1]);
        vec![Some(dy.tape().apply(EmbedGradient { rows: table.dims()[0] }, &[ids, dy])), None]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (table, ids) = (inputs[0], inputs[1]);
        let last = (table.dims[0] - 1) as f64;
        Array::generate(&frame.dims(output), |at| {
            let id = ids.at(&at[..at.len() - 1]);
            let row = if id < 0.0 { last } else { id.min(last) };
            table.at(&[row as usize, at[at.len() - 1]])
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Embed
    }
}

impl Var {
    /// Returns the row for each id. This value is the table `[rows, width]`.
    pub fn embed(&self, ids: &Var) -> Var {
        self.tape().look_up(ids, self.dims().first());
        self.tape().apply(Embed, &[self, ids])
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "embed", cases }];

fn cases() -> Vec<Case> {
    let ids = |ty: Type| Case::random(Embed, &[Type::global(&[4, 5]), ty.of(DType::I32)]);
    vec![ids(Type::sample(&[])), ids(Type::sample(&[7])), ids(Type::global(&[6]))]
}
