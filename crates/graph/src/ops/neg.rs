use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = -x, elementwise.
#[derive(Debug, Serialize)]
pub struct Neg;

impl Pointwise for Neg {
    const NAME: &str = "neg";
    const ARITY: usize = 1;
    const WGSL: &str = "-$0";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Passes;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Keeps;
    const CASES: &[&[f64]] = &[&[2.0], &[-3.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        -x[0]
    }

    /// dx = -dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(-*dy)]
    }
}
