use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = -1, 0 or 1, elementwise.
#[derive(Debug, Serialize)]
pub struct Sign;

impl Pointwise for Sign {
    const NAME: &str = "sign";
    const ARITY: usize = 1;
    const WGSL: &str = "select(select(0.0, -1.0, $0 < 0.0), 1.0, $0 > 0.0)";
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Makes;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-2.0], &[3.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        if x[0] == 0.0 { 0.0 } else { x[0].signum() }
    }

    /// There is none: the sign is flat.
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None]
    }
}

impl Var {
    /// Returns -1, 0 or 1, the sign of the value.
    pub fn sign(&self) -> Var {
        self.apply(Sign)
    }
}
