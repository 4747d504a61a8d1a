//! Values that nothing computes: inputs, state, numbers.

use serde::Serialize;

use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, Frame, Type};

/// Stands for the value of input `.0` of the step.
#[derive(Debug, Clone, Serialize)]
pub struct Input(pub usize);

/// Stands for tensor `.0` of the state as it was before the step.
#[derive(Debug, Clone, Serialize)]
pub struct State(pub usize);

/// Stands for the number `.0`.
#[derive(Debug, Clone, Serialize)]
pub struct Constant(pub f32);

macro_rules! leaf {
    ($op:ident, $name:expr, $lowering:expr, $value:expr) => {
        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }
            fn attrs(&self) -> String {
                self.0.to_string()
            }
            fn infer(&self, _: &[&Type]) -> Result<Type, String> {
                Ok(Type::global(&[]))
            }
            fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
                vec![]
            }
            fn reference(&self, _: &[&Array], _: &Type, _: &Frame) -> Array {
                Array::scalar($value(self))
            }
            fn lowering(&self) -> Lowering {
                $lowering(self)
            }
        }
    };
}

// The interpreter is given the values of inputs and states; it never asks their ops.
leaf!(Input, "input", |_: &Input| Lowering::Leaf, |_: &Input| 0.0);
leaf!(State, "state", |_: &State| Lowering::Leaf, |_: &State| 0.0);
leaf!(Constant, "constant", |c: &Constant| Lowering::Constant(c.0), |c: &Constant| f64::from(c.0));
