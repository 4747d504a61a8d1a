use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use super::Pointwise;
use crate::trace::{Io, Product, Var};

/// y = x / (1 + |x|), elementwise.
#[derive(Debug, Serialize)]
pub struct Softsign;

impl Pointwise for Softsign {
    const NAME: &str = "softsign";
    const ARITY: usize = 1;
    const WGSL: &str = "quotient($0, 1.0 + abs($0))";
    const SNIPPETS: &[Snippet] = &[snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const CASES: &[&[f64]] = &[&[-3.0], &[-0.2], &[0.5], &[40.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0] / (1.0 + x[0].abs())
    }

    /// dx = dy (1 - |y|)^2, because 1 - |y| = 1 / (1 + |x|). It needs y only, so x may be freed.
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let rest = 1.0 - y.abs();
        vec![Some(*dy * &(&rest * &rest))]
    }
}

impl Var {
    /// Returns x / (1 + |x|), elementwise.
    pub fn softsign(&self) -> Var {
        self.apply(Softsign)
    }
}
