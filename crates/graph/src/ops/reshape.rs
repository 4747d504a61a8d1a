use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View};
use crate::values::{Array, Frame, Lead, Type};

/// y is the elements of x in the same row-major order under other axes (PyTorch's `reshape`). The batch axis
/// is not among them.
#[derive(Debug, Clone, Serialize)]
pub struct Reshape {
    /// The axes of the result without the batch.
    pub dims: Vec<usize>,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn attrs(&self) -> String {
        format!("{:?}", self.dims)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let to = inputs[0].with_dims(&self.dims);
        if to.count() == inputs[0].count() {
            return Ok(to);
        }
        let unit =
            if to.lead == Lead::Sample { " a sample; a reshape cannot cross the batch axis" } else { "" };
        Err(format!("{} holds {} values, {to} {}{unit}", inputs[0], inputs[0].count(), to.count()))
    }

    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.with_axes(x[0].dims()))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        inputs[0].reshaped(&frame.dims(output))
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Reshape)
    }
}

/// y = x, and its gradient is zero (PyTorch's `detach`, Keras's `stop_gradient`).
#[derive(Debug, Clone, Serialize)]
pub struct Detach;

impl Op for Detach {
    fn name(&self) -> &'static str {
        "detach"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        Ok(inputs[0].clone())
    }

    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }

    fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
        inputs[0].clone()
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Reshape)
    }
}

impl Var {
    /// Returns the same elements under other axes. For a value with samples, `dims` are the axes of one
    /// sample.
    pub fn reshape(&self, dims: &[usize]) -> Var {
        self.apply(Reshape { dims: dims.to_vec() })
    }

    /// Returns the same elements under other axes, and the value itself where the axes are the same already.
    pub(crate) fn with_axes(&self, dims: &[usize]) -> Var {
        if self.dims() == dims { self.clone() } else { self.reshape(dims) }
    }

    /// Returns the value with all axes of a sample in one: `[B, 28, 28]` becomes `[B, 784]`.
    pub fn flatten(&self) -> Var {
        self.with_axes(&[self.ty().count()])
    }

    /// Returns the same value, through which no gradient flows.
    pub fn detach(&self) -> Var {
        self.apply(Detach)
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "reshape", cases },
    Entry { name: "detach", cases: || vec![Case::random(Detach, &[Type::sample(&[3])])] },
];

fn cases() -> Vec<Case> {
    let case = |ty: Type, dims: &[usize]| Case::random(Reshape { dims: dims.to_vec() }, &[ty]);
    vec![case(Type::sample(&[2, 6]), &[3, 4]), case(Type::global(&[6]), &[2, 3])]
}
