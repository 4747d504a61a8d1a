use std::sync::Arc;

use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Halves, Io, Product, Tape, Var};
use crate::values::Precision;
use crate::values::half::round_half;
use super::Pointwise;

/// y is the nearest number that f16 holds, as an f32; see [`round_half`]. Mixed precision applies it to the
/// operands of products.
#[derive(Debug, Serialize)]
pub struct RoundHalf;

impl Pointwise for RoundHalf {
    const NAME: &str = "round_half";
    const ARITY: usize = 1;
    const WGSL: &str = "round_half($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ROUND_HALF];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = false;
    const HALVES: Halves = Halves::Makes;
    const CASES: &[&[f64]] =
        &[&[0.1], &[-1.0], &[3e-8], &[5e-6], &[65_519.0], &[-2049.0], &[2051.0], &[1e-9], &[0.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        f64::from(round_half(x[0] as f32))
    }

    /// dx = dy: the gradient passes as if nothing had been rounded.
    fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some((*dy).clone())]
    }
}

impl Var {
    /// Returns the nearest numbers that f16 holds.
    pub fn round_half(&self) -> Var {
        self.apply(RoundHalf)
    }
}

impl Tape {
    /// Returns a tape with nothing recorded. With [`Precision::Mixed`] the operands of every product, those
    /// of the gradients included, are rounded to numbers that f16 holds, and so are products of samples: what
    /// is kept of them for the gradients takes two bytes. Sums over samples, such as the gradient of a
    /// weight, are f32.
    pub fn with_precision(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::new(),
            Precision::Mixed | Precision::MatrixUnits => Self::with_rounding(Arc::new(RoundHalf)),
        }
    }
}
