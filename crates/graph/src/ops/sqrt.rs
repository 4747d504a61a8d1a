use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = the square root of x, elementwise.
#[derive(Debug, Serialize)]
pub struct Sqrt;

impl Pointwise for Sqrt {
    const NAME: &str = "sqrt";
    const ARITY: usize = 1;
    const WGSL: &str = "root($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ROOT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    // The root of a canonical number is +0, at least 2^-63, or not a number.
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[1e-06], &[0.25], &[2.0], &[100000000.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].sqrt()
    }

    /// dx = dy / (2 y).
    fn gradient(&self, Io { y, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy / (*y * 2.0))]
    }
}

impl Var {
    /// Returns the square root.
    pub fn sqrt(&self) -> Var {
        self.apply(Sqrt)
    }
}
