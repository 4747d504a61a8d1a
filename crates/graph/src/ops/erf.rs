use serde::Serialize;
use unisono_shaders::{Snippet, snippets};

use crate::trace::{Io, Product, Var};
use super::Pointwise;

/// y = erf(x), the error function, elementwise.
#[derive(Debug, Serialize)]
pub struct Erf;

impl Pointwise for Erf {
    const NAME: &str = "erf";
    const ARITY: usize = 1;
    const WGSL: &str = "erf_($0)";
    const SNIPPETS: &[Snippet] = &[snippets::ELEMENTARY, snippets::QUOTIENT];
    const PRODUCT: Product = Product::Never;
    const ADDS: bool = true;
    const CANONICAL: bool = true;
    const CASES: &[&[f64]] = &[&[-5.0], &[-1.0], &[-0.0001], &[0.0], &[0.3], &[2.0], &[5.0]];

    fn reference(&self, x: &[f64]) -> f64 {
        erf(x[0])
    }

    /// dx = dy 2 e^(-x^2) / sqrt(pi).
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(*dy * (-(&x[0] * &x[0])).exp() * std::f32::consts::FRAC_2_SQRT_PI)]
    }
}

impl Var {
    /// Returns the error function.
    pub fn erf(&self) -> Var {
        self.apply(Erf)
    }

    /// Returns x times the share of a standard normal below x (Hendrycks and Gimpel 2016). It is the exact
    /// form, which is the default of PyTorch's `gelu`.
    pub fn gelu(&self) -> Var {
        let below = (self * std::f32::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
        self * below
    }
}

/// Returns the error function in f64, by its Taylor series near 0 and by the continued fraction of its
/// complement elsewhere.
fn erf(x: f64) -> f64 {
    let scale = std::f64::consts::FRAC_2_SQRT_PI;
    let z = x.abs();
    if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return scale * sum * x.signum();
    }
    let fraction = (1..60).rev().fold(z, |tail, n| z + f64::from(n) / 2.0 / tail);
    (1.0 - scale / 2.0 * (-z * z).exp() / fraction) * x.signum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reference_is_right() {
        // DLMF 7.
        for (x, y) in
            [(0.5, 0.520_499_877_813_046_5), (2.9, 0.999_958_902_121_900_5), (3.1, 0.999_988_351_342_632_8)]
        {
            assert!((super::erf(x) - y).abs() < 1e-12, "erf({x}) = {}", super::erf(x));
        }
    }
}
