use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = max(x, 0), elementwise.
#[derive(Debug, Serialize)]
pub struct Relu;

impl Pointwise for Relu {
    const NAME: &str = "relu";
    const ARITY: usize = 1;
    const WGSL: &str = "select(0.0, $0, $0 > 0.0)";
    const PRODUCT: Product = Product::Passes;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Keeps;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-2.0], &[-0.001], &[0.001], &[3.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].max(0.0)
    }

    /// dx = dy where x > 0, which is where y > 0, else 0. So what comes before y need not be kept.
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let zero = dy.tape().constant(0.0);
        vec![Some(y.greater(&zero).select(dy, &zero))]
    }
}

impl Var {
    /// Returns max(x, 0).
    pub fn relu(&self) -> Var {
        self.apply(Relu)
    }
}
