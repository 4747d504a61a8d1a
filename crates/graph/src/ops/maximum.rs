use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = max(a, b), elementwise. If one of them is NaN, y is a or b, as the driver has it; the reference then
/// is NaN, as in PyTorch.
#[derive(Debug, Serialize)]
pub struct Maximum;

impl Pointwise for Maximum {
    const NAME: &str = "maximum";
    const ARITY: usize = 2;
    const WGSL: &str = "select($1, $0, $0 >= $1)";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Passes;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Keeps;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[1.0, 2.0], &[3.0, -1.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        if x[0].is_nan() || x[0] >= x[1] { x[0] } else { x[1] }
    }

    /// dy goes to the larger operand, half of it to each where they are equal (as in PyTorch).
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        larger_gradient(&x[0], &x[1], dy)
    }
}

impl Var {
    /// Returns the larger one of two values, elementwise. If one of them is NaN, the result is either of the
    /// two.
    pub fn maximum(&self, b: &Var) -> Var {
        self.zip(Maximum, &[b])
    }
}

/// Returns the gradients of two operands: dy goes to the larger one, half of it to each where they are equal.
pub(super) fn larger_gradient(a: &Var, b: &Var, dy: &Var) -> Vec<Option<Var>> {
    let share = (a.greater(b) - b.greater(a)) * 0.5 + 0.5;
    vec![Some(dy * &share), Some(dy * &(1.0 - &share))]
}
