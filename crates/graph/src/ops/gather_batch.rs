use serde::Serialize;

use super::Contract;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Expression, Halves, Io, Lowering, Op, Product, RandomKey, Var};
use crate::values::{Array, DType, Frame, Lead, Type};

/// The most rows of a batch that is gathered, so that positions of 64 bits are divided by it in halves of 16.
const MOST: usize = 1 << 16;

/// y is the row of each sample among `rows` rows: its position in the epoch modulo `rows`, `[B]` as i32. The
/// samples of a batch of at most `rows` samples have different rows.
#[derive(Debug, Clone, Serialize)]
pub struct BatchRow {
    /// The number of rows.
    pub rows: usize,
}

impl Op for BatchRow {
    fn name(&self) -> &'static str {
        "batch_row"
    }

    fn attrs(&self) -> String {
        format!("rows={}", self.rows)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        if !(1..=MOST).contains(&self.rows) {
            return Err(format!("{} rows are not in 1..={MOST}", self.rows));
        }
        match inputs[0] == &RandomKey::ty() {
            true => Ok(Type::sample(&[]).of(DType::I32)),
            false => Err(format!("{} is not the random key", inputs[0])),
        }
    }

    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, frame: &Frame) -> Array {
        let words: Vec<u64> = inputs[0].data.iter().map(|&w| w as u64).collect();
        let position = words[3] | words[4] << 32;
        let row = |i: usize| (position + i as u64) % self.rows as u64;
        Array::new(&[frame.samples()], (0..frame.samples()).map(|i| row(i) as f64).collect())
    }

    fn lowering(&self) -> Lowering {
        let rows = self.rows;
        let low = "($0[3] + $row)";
        let high = format!("($0[4] + select(0u, 1u, {low} < $0[3]))");
        let rest = format!("((({high} % {rows}u) << 16u) | ({low} >> 16u))");
        Lowering::Pointwise(Expression {
            wgsl: format!("i32(((({rest} % {rows}u) << 16u) | ({low} & 65535u)) % {rows}u)"),
            snippets: &[],
            whole: &[0],
            product: Product::Never,
            adds: false,
            halves: Halves::Never,
            canonical: true,
        })
    }
}

/// The values of all samples of a global batch, on whatever replica they are.
#[derive(Clone, Debug)]
pub struct GatheredBatch {
    /// The values, `[rows, ...]`, the same for all samples. Rows without a sample are zeros.
    pub values: Var,
    /// 1 for a row that has a sample, 0 for one that a smaller batch leaves empty, `[rows]`.
    pub is_there: Var,
    /// 1 for the sample's own row, 0 for others, `[B, rows]`.
    pub is_own: Var,
}

impl Var {
    /// Returns the values of all samples of the global batch, `[B, ...]` to `[rows, ...]`, for losses that
    /// compare samples (PyTorch's `all_gather` over the batch, with its gradient). `rows` is the most samples
    /// that a global batch has, at most 65,536. A trainer refuses a larger batch. A smaller one, such as the
    /// last of an epoch, leaves rows empty.
    ///
    /// A sample's row is its position in the epoch modulo `rows`: in batches of `rows` samples, row 0 is
    /// that of the batch's first sample. Values are copied exactly, on any replicas and machines. The
    /// gradient of a sample is the sum over all samples that used it, in the fixed order.
    ///
    /// It is written with other ops: a product with one-hot rows. It takes B x rows x elements
    /// multiplications forward and as many back, and memory for the rows of each shard. All shards of a
    /// replica run at once, as with batch norm.
    ///
    /// Errors: the value has no samples or is not of f32, `rows` is 0 or above 65,536.
    #[doc(alias = "all_gather")]
    pub fn gather_batch(&self, rows: usize) -> GatheredBatch {
        let tape = self.tape();
        let row = tape.apply(BatchRow { rows }, &[&tape.random()]);
        if self.ty().lead != Lead::Sample || row.ty().dtype != DType::I32 {
            if self.ty().lead != Lead::Sample {
                tape.fail_here("gather_batch", format!("{} has no samples", self.ty()));
            }
            return GatheredBatch { values: self.clone(), is_there: self.clone(), is_own: self.clone() };
        }
        let is_own = row.one_hot(rows);
        let sum = |x: &Var| tape.in_f32(|| tape.apply(Contract, &[&is_own, x])).sum_shards();
        let dims: Vec<usize> = std::iter::once(rows).chain(self.dims().iter().copied()).collect();
        let values = sum(&self.flatten()).reshape(&dims);
        let is_there = sum(&tape.constant(1.0).expand(Lead::Sample, &[1])).reshape(&[rows]);
        GatheredBatch { values, is_there, is_own }
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "batch_row", cases }];

fn cases() -> Vec<Case> {
    let case = |rows, position| {
        let key = RandomKey { seed: 1, epoch: 3, position };
        let words: Vec<f64> = key.words().iter().map(|&w| f64::from(w)).collect();
        Case::random(BatchRow { rows }, &[RandomKey::ty()]).with(0, &words)
    };
    vec![case(3, 0), case(1, 7), case(48, (1 << 32) - 2), case(65_535, 0x1234_5678_9abc), case(MOST, 65_534)]
}
