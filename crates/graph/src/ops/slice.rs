use serde::Serialize;

use crate::ops::Pad;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View};
use crate::values::{Array, Frame, Lead, Type};

/// y[i, j, ...] = x[i + start_0, j + start_1, ...]: a box of the operand (PyTorch's `narrow`). The batch axis
/// stays whole.
#[derive(Debug, Clone, Serialize)]
pub struct Slice {
    /// The first coordinate on each axis.
    pub start: Vec<usize>,
    /// The axes of the result.
    pub dims: Vec<usize>,
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn attrs(&self) -> String {
        format!("{:?} {:?}", self.start, self.dims)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let x = inputs[0];
        let inside = self.start.len() == x.dims.len()
            && self.dims.len() == x.dims.len()
            && self.start.iter().zip(&self.dims).zip(&x.dims).all(|((s, n), d)| n <= d && *s <= d - n);
        let problem = || format!("{:?} values from {:?} do not lie in {x}", self.dims, self.start);
        inside.then(|| x.with_dims(&self.dims)).ok_or_else(problem)
    }

    /// dx = dy with zeros around it.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.apply(Pad { before: self.start.clone(), dims: x[0].dims().to_vec() }))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let lead = usize::from(output.lead != Lead::Global);
        Array::generate(&frame.dims(output), |at| {
            let mut from = at.to_vec();
            from[lead..].iter_mut().zip(&self.start).for_each(|(i, s)| *i += s);
            inputs[0].at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Slice(self.start.clone()))
    }
}

impl Var {
    /// Returns the coordinates `range` of one axis. Negative axes count from the end; axis 0 of a value with
    /// samples is the batch.
    pub fn slice(&self, axis: isize, range: std::ops::Range<usize>) -> Var {
        let Some(axis) = self.axis("slice", axis) else { return self.clone() };
        let (mut start, mut dims) = (vec![0; self.dims().len()], self.dims().to_vec());
        (start[axis], dims[axis]) = (range.start, range.end.saturating_sub(range.start));
        self.apply(Slice { start, dims })
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "slice", cases }];

fn cases() -> Vec<Case> {
    let case = |ty: Type, start: &[usize], dims: &[usize]| {
        Case::random(Slice { start: start.to_vec(), dims: dims.to_vec() }, &[ty])
    };
    vec![case(Type::sample(&[4, 5]), &[1, 0], &[2, 5]), case(Type::global(&[6]), &[2], &[3])]
}
