use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View};
use crate::values::{Array, Frame, Lead, Type};

/// Axis i of the result is axis `order[i]` of the operand (PyTorch's `permute`). The batch axis stays first.
#[derive(Debug, Clone, Serialize)]
pub struct Permute {
    /// A permutation of the axes without the batch.
    pub order: Vec<usize>,
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn attrs(&self) -> String {
        format!("{:?}", self.order)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if sorted != (0..inputs[0].dims.len()).collect::<Vec<_>>() {
            return Err(format!("{:?} is no permutation of the axes of {}", self.order, inputs[0]));
        }
        let dims: Vec<usize> = self.order.iter().map(|&axis| inputs[0].dims[axis]).collect();
        Ok(inputs[0].with_dims(&dims))
    }

    /// dx is dy under the inverse permutation.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let mut inverse = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
        vec![Some(dy.apply(Permute { order: inverse }))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let dims = frame.dims(output);
        let lead = dims.len() - self.order.len();
        Array::generate(&dims, |at| {
            let mut from = at.to_vec();
            self.order.iter().enumerate().for_each(|(to, &axis)| from[lead + axis] = at[lead + to]);
            inputs[0].at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Permute(self.order.clone()))
    }
}

impl Var {
    /// Returns the value with its axes in another order: axis i of the result is axis `order[i]` of this one.
    /// The batch is not counted.
    pub fn permute(&self, order: &[usize]) -> Var {
        self.apply(Permute { order: order.to_vec() })
    }

    /// Returns the value with two axes swapped. Negative axes count from the end. Axis 0 of a value with
    /// samples is the batch, which stays first.
    pub fn transpose(&self, a: isize, b: isize) -> Var {
        let (Some(a), Some(b)) = (self.axis("transpose", a), self.axis("transpose", b)) else {
            return self.clone();
        };
        let mut order: Vec<usize> = (0..self.dims().len()).collect();
        order.swap(a, b);
        self.apply(Permute { order })
    }

    /// Returns a user's axis as an index into `dims`. The batch axis and axes that are not there are errors,
    /// which the tape keeps.
    pub(crate) fn axis(&self, op: &str, axis: isize) -> Option<usize> {
        let rank = self.ty().rank() as isize;
        let from_front = if axis < 0 { axis + rank } else { axis };
        let lead = isize::from(self.ty().lead == Lead::Sample);
        if from_front < 0 || from_front >= rank {
            self.tape().fail_here(op, format!("{} has no axis {axis}", self.ty()));
            return None;
        }
        if from_front < lead {
            let problem = format!(
                "axis {axis} of {} is the batch, which a model does not reduce: give a loss or metric one number \
                 for each sample. The trainer takes their mean. Var::sum_shards sums over the samples",
                self.ty()
            );
            self.tape().fail_here(op, problem);
            return None;
        }
        Some((from_front - lead) as usize)
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "permute", cases }];

fn cases() -> Vec<Case> {
    let case = |ty: Type, order: &[usize]| Case::random(Permute { order: order.to_vec() }, &[ty]);
    vec![case(Type::sample(&[2, 3, 4]), &[2, 0, 1]), case(Type::global(&[5, 3]), &[1, 0])]
}
