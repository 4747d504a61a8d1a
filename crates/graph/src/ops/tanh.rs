use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = tanh x, elementwise.
#[derive(Debug, Serialize)]
pub struct Tanh;

impl Pointwise for Tanh {
    const NAME: &str = "tanh";
    const ARITY: usize = 1;
    const WGSL: &str = "tanh_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ELEMENTARY, snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = true;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-20.0], &[-1.0], &[-0.0001], &[0.0], &[0.3], &[2.0], &[20.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].tanh()
    }

    /// dx = dy (1 - y^2).
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * (1.0 - *y * *y))]
    }
}

impl Var {
    /// Returns the hyperbolic tangent.
    pub fn tanh(&self) -> Var {
        self.apply(Tanh)
    }
}
