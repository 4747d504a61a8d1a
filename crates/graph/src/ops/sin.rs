use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = sin x, elementwise. The error is at most 2 units in the last place of 1 for |x| up to 12,000. For
/// larger numbers neither an error nor equal bits on all adapters are promised; above 131,000 the result is
/// of no use.
#[derive(Debug, Serialize)]
pub struct Sin;

impl Pointwise for Sin {
    const NAME: &str = "sin";
    const ARITY: usize = 1;
    const WGSL: &str = "sin_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::TRIGONOMETRY];
    const PRODUCT: Product = Product::Never;
    const CASES: &[&[f64]] = &[&[-9000.25], &[-7.0], &[-1.0], &[0.0], &[0.5], &[2.0], &[40.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].sin()
    }

    /// dx = dy cos x.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * x[0].cos())]
    }
}

/// y = cos x, elementwise. The error is that of [`Sin`].
#[derive(Debug, Serialize)]
pub struct Cos;

impl Pointwise for Cos {
    const NAME: &str = "cos";
    const ARITY: usize = 1;
    const WGSL: &str = "cos_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::TRIGONOMETRY];
    const PRODUCT: Product = Product::Never;
    const CASES: &[&[f64]] = &[&[-9000.25], &[-7.0], &[-1.0], &[0.0], &[0.5], &[2.0], &[40.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].cos()
    }

    /// dx = -dy sin x.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(-(*dy * x[0].sin()))]
    }
}

impl Var {
    /// Returns the sine of radians.
    pub fn sin(&self) -> Var {
        self.apply(Sin)
    }

    /// Returns the cosine of radians.
    pub fn cos(&self) -> Var {
        self.apply(Cos)
    }
}
