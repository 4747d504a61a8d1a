use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, DType, Frame, Type};
use super::{Eq, Iota};

/// y[...] = x[..., index[...]]: one element of the last axis (PyTorch's `gather` with one index). An index
/// outside of the axis reads the last element; the code that feeds indices must check them.
#[derive(Debug, Clone, Serialize)]
pub struct Take;

impl Op for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (x, index) = (inputs[0], inputs[1]);
        let (Some((_, rest)), DType::I32) = (x.dims.split_last(), index.dtype) else {
            return Err(format!("needs an axis to take from and i32 indices, got {x} and {index}"));
        };
        let matches = index.lead == x.lead && index.dims == rest;
        matches
            .then(|| x.with_dims(rest))
            .ok_or_else(|| format!("{index} does not index the last axis of {x}"))
    }

    /// dx = dy at the index, 0 elsewhere.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let (values, index) = (&x[0], &x[1]);
        vec![Some(index.one_hot(values.dims()[values.dims().len() - 1]) * dy.add_axis()), None]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (x, index) = (inputs[0], inputs[1]);
        let last = x.dims[x.dims.len() - 1];
        Array::generate(&frame.dims(output), |at| {
            let mut from = at.to_vec();
            let i = index.at(at);
            from.push(if i < 0.0 { last - 1 } else { (i as usize).min(last - 1) });
            x.at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Take
    }
}

impl Var {
    /// Returns for each row the element of the last axis that `index` names.
    pub fn take(&self, index: &Var) -> Var {
        self.tape().look_up(index, self.dims().last());
        self.tape().apply(Take, &[self, index])
    }

    /// Returns the one-hot form of i32 classes, `[...]` to `[..., classes]`: 1 at the class, 0 elsewhere.
    pub fn one_hot(&self, classes: usize) -> Var {
        let dims: Vec<usize> = self.dims().iter().copied().chain([classes]).collect();
        let lead = self.ty().lead;
        let iota =
            self.tape().apply(Iota { dims: dims.clone(), axis: dims.len() - 1 }, &[]).expand(lead, &dims);
        self.add_axis().expand(lead, &dims).zip(Eq, &[&iota])
    }

    /// Returns the value with a last axis of length 1.
    pub fn add_axis(&self) -> Var {
        let dims: Vec<usize> = self.dims().iter().copied().chain([1]).collect();
        self.reshape(&dims)
    }

    /// Returns the index of the largest element of the last axis as f32, the first one where several are
    /// equal. It is exact below 2^24.
    pub fn argmax(&self) -> Var {
        let classes = self.dims().last().copied().unwrap_or(1);
        let reached = self.zip(Eq, &[&self.max_keep(&[-1])]);
        let iota = self.tape().apply(Iota { dims: vec![classes], axis: 0 }, &[]).to_f32();
        // The first index that reaches the maximum: the largest of (classes - index).
        let rank = reached * (classes as f32 - iota);
        classes as f32 - rank.max(&[-1])
    }

    /// Returns the index of the smallest element of the last axis as f32, the first one where several are
    /// equal. It is exact below 2^24.
    pub fn argmin(&self) -> Var {
        (-self).argmax()
    }

    /// Returns for each row several elements of the last axis, those that `index` names: `[..., n]` and
    /// i32 `[..., k]` to `[..., k]` (PyTorch's `gather` and `take_along_dim` along the last axis). An
    /// index outside of the axis reads the last element.
    pub fn gather(&self, index: &Var) -> Var {
        let (Some((&n, rest)), Some((&k, rows))) = (self.dims().split_last(), index.dims().split_last()) else {
            self.tape().fail_here("gather", format!("{} or {} has no axis", self.ty(), index.ty()));
            return self.clone();
        };
        if rest != rows {
            self.tape().fail_here("gather", format!("{} does not index rows of {}", index.ty(), self.ty()));
            return self.clone();
        }
        let row = self.reshape(&[rest, &[1, n]].concat());
        row.expand(self.ty().lead, &[rest, &[k, n]].concat()).take(index)
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "take", cases }];

fn cases() -> Vec<Case> {
    let case = |x: Type| {
        let index = x.with_dims(&x.dims[..x.dims.len() - 1]).of(DType::I32);
        Case::random(Take, &[x, index]).with(1, &[2.0, 0.0, 1.0, 3.0])
    };
    vec![case(Type::sample(&[4])), case(Type::sample(&[3, 4])), case(Type::global(&[2, 4]))]
}
