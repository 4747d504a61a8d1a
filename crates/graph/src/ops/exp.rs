use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = e^x, elementwise.
#[derive(Debug, Serialize)]
pub struct Exp;

impl Pointwise for Exp {
    const NAME: &str = "exp";
    const ARITY: usize = 1;
    const WGSL: &str = "exp_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ELEMENTARY, snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = true;
    const CASES: &[&[f64]] = &[&[-90.0], &[-1.0], &[0.0], &[1.0], &[60.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].exp()
    }

    /// dx = dy y.
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * *y)]
    }
}

impl Var {
    /// Returns e^x.
    pub fn exp(&self) -> Var {
        self.apply(Exp)
    }
}
