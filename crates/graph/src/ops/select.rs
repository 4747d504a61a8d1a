use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use super::Pointwise;

/// y = a where the mask is not 0, else b.
#[derive(Debug, Serialize)]
pub struct Select;

impl Pointwise for Select {
    const NAME: &str = "select";
    const ARITY: usize = 3;
    const WGSL: &str = "select($2, $1, $0 != 0.0)";
    const PRODUCT: Product = Product::Passes;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Keeps;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[1.0, 2.0, 5.0], &[0.0, -3.0, 4.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        if x[0] != 0.0 { x[1] } else { x[2] }
    }

    /// dy goes to the chosen operand.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let zero = dy.tape().constant(0.0);
        vec![None, Some(x[0].select(dy, &zero)), Some(x[0].select(&zero, dy))]
    }
}

impl Var {
    /// Returns `a` where this value, the mask, is not 0, else `b` (`where` of NumPy, PyTorch and Keras).
    #[doc(alias = "where")]
    pub fn select(&self, a: &Var, b: &Var) -> Var {
        self.zip(Select, &[a, b])
    }
}
