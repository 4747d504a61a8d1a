use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y is the largest whole number that is not above x, elementwise (PyTorch's `floor`).
#[derive(Debug, Serialize)]
pub struct Floor;

impl Pointwise for Floor {
    const NAME: &str = "floor";
    const ARITY: usize = 1;
    const WGSL: &str = "floor($0)";
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Never;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-2.5], &[-0.25], &[0.75], &[3.5], &[1e9 + 0.5]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].floor()
    }

    /// There is none: the result is flat between whole numbers.
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }
}

impl Var {
    /// Returns the largest whole number that is not above the value. Its gradient is 0.
    pub fn floor(&self) -> Var {
        self.apply(Floor)
    }
}
