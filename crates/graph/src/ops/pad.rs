use serde::Serialize;

use crate::ops::Slice;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, Frame, Lead, Type};

/// y is x in a larger box with zeros around it (PyTorch's constant `pad`). The batch axis is not padded.
#[derive(Debug, Clone, Serialize)]
pub struct Pad {
    /// The number of zeros in front of each axis.
    pub before: Vec<usize>,
    /// The axes of the result.
    pub dims: Vec<usize>,
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn attrs(&self) -> String {
        format!("{:?} {:?}", self.before, self.dims)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let x = inputs[0];
        let inside = self.before.len() == x.dims.len()
            && self.dims.len() == x.dims.len()
            && self.before.iter().zip(&self.dims).zip(&x.dims).all(|((b, n), d)| d <= n && *b <= n - d);
        let problem = || format!("{x} at {:?} does not lie in a box of {:?}", self.before, self.dims);
        inside.then(|| x.with_dims(&self.dims)).ok_or_else(problem)
    }

    /// dx = dy without the border.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Slice { start: self.before.clone(), dims: x[0].dims().to_vec() }))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (x, lead) = (inputs[0], usize::from(output.lead != Lead::Global));
        Array::generate(&frame.dims(output), |at| {
            let mut from = at.to_vec();
            for (axis, before) in self.before.iter().enumerate() {
                let i = at[lead + axis];
                if i < *before || i - before >= x.dims[lead + axis] {
                    return 0.0;
                }
                from[lead + axis] = i - before;
            }
            x.at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Pad(self.before.clone())
    }
}

impl Var {
    /// Returns the value with zeros before and after each axis of a sample, or of a global value.
    pub fn pad(&self, before: &[usize], after: &[usize]) -> Var {
        let padded = |((d, b), a): ((&usize, &usize), &usize)| d.saturating_add(*b).saturating_add(*a);
        let dims = self.dims().iter().zip(before).zip(after).map(padded).collect();
        self.apply(Pad { before: before.to_vec(), dims })
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "pad", cases }];

fn cases() -> Vec<Case> {
    let case = |ty: Type, before: &[usize], dims: &[usize]| {
        Case::random(Pad { before: before.to_vec(), dims: dims.to_vec() }, &[ty])
    };
    vec![case(Type::sample(&[2, 3]), &[0, 1], &[4, 4]), case(Type::global(&[3]), &[2], &[5])]
}
