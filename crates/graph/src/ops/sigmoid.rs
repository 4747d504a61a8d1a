use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = 1 / (1 + e^-x), elementwise.
#[derive(Debug, Serialize)]
pub struct Sigmoid;

impl Pointwise for Sigmoid {
    const NAME: &str = "sigmoid";
    const ARITY: usize = 1;
    const WGSL: &str = "sigmoid($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ELEMENTARY, snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const CASES: &[&[f64]] = &[&[-90.0], &[-1.0], &[0.0], &[1.0], &[30.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        1.0 / (1.0 + (-x[0]).exp())
    }

    /// dx = dy y (1 - y).
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * *y * (1.0 - *y))]
    }
}

impl Var {
    /// Returns 1 / (1 + e^-x).
    pub fn sigmoid(&self) -> Var {
        self.apply(Sigmoid)
    }
}
