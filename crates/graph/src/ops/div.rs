use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = a / b, elementwise.
#[derive(Debug, Serialize)]
pub struct Div;

impl Pointwise for Div {
    const NAME: &str = "div";
    const ARITY: usize = 2;
    const WGSL: &str = "quotient($0, $1)";
    const SNIPPETS: &[Snippet] = &[snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const CASES: &[&[f64]] = &[&[3.0, -2.5], &[0.0, 7.0], &[0.001, 10000.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] / x[1]
    }

    /// da = dy / b, db = -dy y / b.
    fn gradient(&self, Io { x, y, dy }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy / &x[1]), Some(-(*dy * *y / &x[1]))]
    }
}
