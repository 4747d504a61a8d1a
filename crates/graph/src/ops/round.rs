use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y is the whole number nearest to x, elementwise, and of two the even one (PyTorch's and NumPy's `round`).
#[derive(Debug, Serialize)]
pub struct Round;

impl Pointwise for Round {
    const NAME: &str = "round";
    const ARITY: usize = 1;
    const WGSL: &str = "round($0)";
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Never;
    const CASES: &[&[f64]] = &[&[-2.25], &[-0.25], &[0.75], &[3.25], &[1e9]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].round_ties_even()
    }

    /// There is none: the result is flat between halves.
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }
}

impl Var {
    /// Returns the nearest whole number, and of two equally near ones the even one. Its gradient is 0.
    pub fn round(&self) -> Var {
        self.apply(Round)
    }
}
