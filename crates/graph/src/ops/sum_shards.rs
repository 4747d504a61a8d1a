use serde::Serialize;

use crate::ops::Reduce;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, ReduceKind, Reduction, Var};
use crate::values::{Array, Frame, Lead, Type};

/// y is the sum of the values of the shards, in the order of [`crate::tree`]. It is the only op that
/// makes a global value of samples, and a step is cut here.
#[derive(Debug, Clone, Serialize)]
pub struct SumShards;

impl Op for SumShards {
    fn name(&self) -> &'static str {
        "sum_shards"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        match inputs[0].lead {
            Lead::Shard => Ok(inputs[0].with_lead(Lead::Global)),
            _ => Err(format!("{} is not a sum of a shard", inputs[0])),
        }
    }

    /// dx = dy, the same for every shard.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone())]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, _: &Frame) -> Array {
        let mut data = vec![0.0; output.count()];
        for shard in inputs[0].data.chunks(output.count().max(1)) {
            data.iter_mut().zip(shard).for_each(|(a, x)| *a += x);
        }
        Array::new(&output.dims, data)
    }

    fn lowering(&self) -> Lowering {
        Lowering::SumShards
    }
}

impl Var {
    /// Returns the sum over all samples of the batch, on whatever replica they are: `[B, 10]` becomes `[10]`,
    /// the same everywhere.
    pub fn sum_shards(&self) -> Var {
        match self.ty().lead {
            Lead::Global => {
                let problem = format!("{} is the same for all samples: it has no sum over them", self.ty());
                self.tape().fail_here("sum_shards", problem);
                self.clone()
            }
            Lead::Shard => self.apply(SumShards),
            Lead::Sample => self.sum_samples().apply(SumShards),
        }
    }

    /// Returns the sum over the samples of each shard, on the way to [`Var::sum_shards`]: `[B, 10]` becomes
    /// `[S; 10]`.
    pub fn sum_samples(&self) -> Var {
        self.apply(Reduce(Reduction { kind: ReduceKind::Sum, axes: vec![], samples: true }))
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "sum_shards", cases }];

fn cases() -> Vec<Case> {
    vec![Case::random(SumShards, &[Type::global(&[3, 2]).with_lead(Lead::Shard)])]
}
