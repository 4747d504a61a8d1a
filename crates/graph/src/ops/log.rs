use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = ln x, elementwise.
#[derive(Debug, Serialize)]
pub struct Log;

impl Pointwise for Log {
    const NAME: &str = "log";
    const ARITY: usize = 1;
    const WGSL: &str = "log_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ELEMENTARY, snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = true;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[1e-06], &[0.5], &[0.999], &[1.0], &[1.001], &[3.0], &[100000000.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].ln()
    }

    /// dx = dy / x.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy / &x[0])]
    }
}

impl Var {
    /// Returns the natural logarithm.
    pub fn log(&self) -> Var {
        self.apply(Log)
    }
}
