use serde::Serialize;

use crate::trace::{Halves, Io, Product, Var};
use crate::values::DType;
use super::Pointwise;

/// y = 1 where a > b, else 0. The operands are f32 or i32.
#[derive(Debug, Serialize)]
pub struct Greater;

impl Pointwise for Greater {
    const NAME: &str = "greater";
    const ARITY: usize = 2;
    const WGSL: &str = "select(0.0, 1.0, $0 > $1)";
    const INTEGERS: bool = true;
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Makes;
    const RESULT: Option<DType> = Some(DType::F32);
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[1.0, 2.0], &[3.0, -3.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        f64::from(u8::from(x[0] > x[1]))
    }

    /// There is none: a comparison is flat.
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None, None]
    }
}

impl Var {
    /// Returns 1 where this value is greater, else 0.
    pub fn greater(&self, b: &Var) -> Var {
        self.zip(Greater, &[b])
    }
}
