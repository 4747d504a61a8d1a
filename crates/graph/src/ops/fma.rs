use serde::Serialize;

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = a b + c, elementwise. It is the only way in which a product meets an addition.
///
/// A device chooses whether the product is rounded before the addition. The choice is the same for all
/// kernels of the device, and so it is a part of its numeric class.
#[derive(Debug, Serialize)]
pub struct Fma;

impl Pointwise for Fma {
    const NAME: &str = "fma";
    const ARITY: usize = 3;
    const WGSL: &str = "fma($0, $1, $2)";
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const CASES: &[&[f64]] = &[&[3.0, -2.5, 1.0], &[0.0, 7.0, -4.0], &[1e-3, 1e4, 0.5]];

    fn reference(&self, x: &[f64]) -> f64 {
        x[0].mul_add(x[1], x[2])
    }

    /// da = dy b, db = dy a, dc = dy.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * &x[1]), Some(*dy * &x[0]), Some((*dy).clone())]
    }
}

impl Var {
    /// Returns self * b + c.
    pub fn fma(&self, b: &Var, c: &Var) -> Var {
        self.zip(Fma, &[b, c])
    }
}
