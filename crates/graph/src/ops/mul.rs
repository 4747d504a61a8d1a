use serde::Serialize;

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = a b, elementwise.
#[derive(Debug, Serialize)]
pub struct Mul;

impl Pointwise for Mul {
    const NAME: &str = "mul";
    const ARITY: usize = 2;
    const WGSL: &str = "$0 * $1";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Makes;
    const ADDS: bool = false;
    const CASES: &[&[f64]] = &[&[3.0, -2.5], &[0.0, 7.0], &[1e-3, 1e4]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] * x[1]
    }

    /// da = dy b, db = dy a.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * &x[1]), Some(*dy * &x[0])]
    }
}
