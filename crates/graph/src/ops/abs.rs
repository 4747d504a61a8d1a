use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = |x|, elementwise.
#[derive(Debug, Serialize)]
pub struct Abs;

impl Pointwise for Abs {
    const NAME: &str = "abs";
    const ARITY: usize = 1;
    const WGSL: &str = "abs($0)";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Passes;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Keeps;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-2.0], &[3.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].abs()
    }

    /// dx = dy sign(x).
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * &x[0].sign())]
    }
}

impl Var {
    /// Returns the absolute value.
    pub fn abs(&self) -> Var {
        self.apply(Abs)
    }
}
