use serde::Serialize;

use crate::ops::Slice;
use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, join_leads};
use crate::values::{Array, Frame, Lead, Type};

/// y is values one behind the other along an axis other than the batch; the other axes agree (PyTorch's
/// `cat`).
///
/// A part that is computed on the device is written where it lies in the whole. Other parts are copied there.
#[derive(Debug, Clone, Serialize)]
pub struct Concat {
    /// The axis, without the batch.
    pub axis: usize,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attrs(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let first = *inputs.first().ok_or("nothing to put together")?;
        let fits = |ty: &&Type| {
            let mut axes = ty.dims.iter().zip(&first.dims).enumerate();
            (ty.lead, ty.dtype, ty.dims.len()) == (first.lead, first.dtype, first.dims.len())
                && axes.all(|(axis, (a, b))| axis == self.axis || a == b)
        };
        if self.axis >= first.dims.len() {
            return Err(format!("{first} has no axis {}", self.axis));
        }
        if let Some(other) = inputs.iter().find(|ty| !fits(ty)) {
            let axis = self.axis + usize::from(first.lead != Lead::Global);
            return Err(format!("{first} and {other} differ on other axes than axis {axis}"));
        }
        let mut dims = first.dims.clone();
        dims[self.axis] = inputs.iter().map(|ty| ty.dims[self.axis]).sum();
        Ok(first.with_dims(&dims))
    }

    /// Each part has its slice of dy.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let mut first = 0;
        let mut slice = |part: &Var| {
            let mut start = vec![0; part.dims().len()];
            start[self.axis] = first;
            first += part.dims()[self.axis];
            Some(dy.apply(Slice { start, dims: part.dims().to_vec() }))
        };
        x.iter().map(&mut slice).collect()
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let axis = self.axis + usize::from(output.lead != Lead::Global);
        Array::generate(&frame.dims(output), |at| {
            let mut from = at.to_vec();
            let mut parts = inputs.iter();
            loop {
                match parts.next() {
                    Some(part) if from[axis] < part.dims[axis] => return part.at(&from),
                    Some(part) => from[axis] -= part.dims[axis],
                    None => return 0.0,
                }
            }
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::Concat(self.axis)
    }
}

impl Var {
    /// Returns this value and others one behind the other along an axis (PyTorch's `cat`). The other axes
    /// agree. A global value has one entry for each sample beside values with samples.
    pub fn concat(&self, others: &[&Var], axis: isize) -> Var {
        let Some(axis) = self.axis("concat", axis) else { return self.clone() };
        let all: Vec<&Var> = std::iter::once(self).chain(others.iter().copied()).collect();
        let lead = join_leads(&all.iter().map(|v| v.ty()).collect::<Vec<_>>());
        let wide: Vec<Var> = all.iter().map(|v| v.expand(lead, v.dims())).collect();
        match &wide[..] {
            [one] => one.clone(),
            _ => self.tape().apply(Concat { axis }, &wide.iter().collect::<Vec<_>>()),
        }
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "concat", cases }];

fn cases() -> Vec<Case> {
    let case = |axis, types: &[Type]| Case::random(Concat { axis }, types);
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(0, &[s(&[3]), s(&[4]), s(&[1])]),
        case(1, &[s(&[2, 3]), s(&[2, 1])]),
        case(0, &[s(&[1, 4]), s(&[2, 4]), s(&[1, 4])]),
        case(0, &[g(&[3, 2]), g(&[1, 2])]),
    ]
}
