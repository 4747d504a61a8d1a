use serde::Serialize;

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = a + b, elementwise.
#[derive(Debug, Serialize)]
pub struct Add;

impl Pointwise for Add {
    const NAME: &str = "add";
    const ARITY: usize = 2;
    const WGSL: &str = "$0 + $1";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = true;
    const CASES: &[&[f64]] = &[&[3.0, -2.5], &[0.001, 10000.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] + x[1]
    }

    /// da = dy, db = dy.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone()), Some((*dy).clone())]
    }
}
