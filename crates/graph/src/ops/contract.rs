use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, Frame, Lead, Type};
use super::MatMul;

/// `[B, ..., k] x [B, ..., n] -> [S; k, n]`: the products of matching rows, summed over the rows of each
/// shard. It is the gradient of a weight. The sum has the order of [`crate::tree`] with
/// [`crate::tree::PRODUCT_CHUNK`].
#[derive(Debug, Clone, Serialize)]
pub struct Contract;

impl Op for Contract {
    fn name(&self) -> &'static str {
        "contract"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (a, b) = (inputs[0], inputs[1]);
        let samples = a.lead == Lead::Sample && b.lead == Lead::Sample;
        match (a.dims.split_last(), b.dims.split_last()) {
            (Some((k, rows_a)), Some((n, rows_b))) if samples && rows_a == rows_b => {
                Ok(a.with_dims(&[*k, *n]).with_lead(Lead::Shard))
            }
            _ => Err(format!("lhs {a} and rhs {b} do not have the same rows")),
        }
    }

    /// da = b dy^T, db = a dy, row by row.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let rows =
            |v: &Var, transpose_b| v.tape().apply(MatMul { transpose_a: false, transpose_b }, &[v, dy]);
        vec![Some(rows(&x[1], true)), Some(rows(&x[0], false))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (a, b) = (inputs[0], inputs[1]);
        let [k, n] = [output.dims[0], output.dims[1]];
        let rows = a.data.len() / (k * frame.samples()).max(1);
        let mut y = Array::generate(&frame.dims(output), |_| 0.0);
        let mut row = 0;
        for (shard, &samples) in frame.shards.iter().enumerate() {
            for _ in 0..samples * rows {
                for i in 0..k {
                    for j in 0..n {
                        y.data[(shard * k + i) * n + j] += a.data[row * k + i] * b.data[row * n + j];
                    }
                }
                row += 1;
            }
        }
        y
    }

    fn lowering(&self) -> Lowering {
        Lowering::Contract
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "contract", cases }];

fn cases() -> Vec<Case> {
    let case = |rows: &[usize], k, n| {
        let ty = |last| Type::sample(&rows.iter().copied().chain([last]).collect::<Vec<_>>());
        Case::random(Contract, &[ty(k), ty(n)])
    };
    vec![case(&[], 5, 3), case(&[], 64, 48), case(&[7], 9, 4), case(&[600], 3, 2), case(&[30_000], 2, 1)]
}
