//! Regression losses: distances between an output and a target of the same shape, averaged over a sample's
//! elements.

use std::f32::consts::LN_2;

use unisono_graph::{Type, Var};

use super::{Loss, mean_of_quantities, mean_of_sample};

/// Mean squared error: the mean of (x - y)^2 over a sample's elements (PyTorch's `MSELoss`, Keras's
/// `MeanSquaredError`).
///
/// Shapes: outputs x and targets y `[B, ...]` to `[B]`.
///
/// Errors: targets of another shape than the outputs. The outputs of `Dense::new(1)` are `[B, 1]`, and need a
/// target field of shape `[1]`, not `[]`.
#[doc(alias = "MSELoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

/// Mean absolute error: the mean of |x - y| over a sample's elements (PyTorch's `L1Loss`, Keras's
/// `MeanAbsoluteError`).
///
/// Shapes: outputs x and targets y `[B, ...]` to `[B]`.
///
/// Errors: targets of another shape than the outputs. The outputs of `Dense::new(1)` are `[B, 1]`, and need a
/// target field of shape `[1]`, not `[]`.
#[doc(alias = "L1Loss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanAbsoluteError;

/// The logarithm of the hyperbolic cosine of the error (Keras's `LogCosh`): the mean over a sample's
/// elements of ln cosh(x - y), which is near (x - y)^2 / 2 for small errors and |x - y| - ln 2 for large
/// ones. It is finite for all errors.
///
/// Shapes: outputs x and targets y `[B, ...]` to `[B]`.
///
/// Errors: targets of another shape than the outputs. The outputs of `Dense::new(1)` are `[B, 1]`, and need a
/// target field of shape `[1]`, not `[]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogCosh;

/// Huber loss (Huber 1964; PyTorch's `HuberLoss`, Keras's `Huber`): with d = x - y, d^2 / 2 where |d| <=
/// delta and delta (|d| - delta / 2) elsewhere, the mean over a sample's elements. The delta of
/// [`Huber::default`] is 1.
///
/// Shapes: outputs x and targets y `[B, ...]` to `[B]`.
///
/// Errors: delta is not a finite number above 0, or targets of another shape than the outputs. The outputs of
/// `Dense::new(1)` are `[B, 1]`, and need a target field of shape `[1]`, not `[]`.
#[doc(alias = "HuberLoss")]
#[derive(Clone, Copy, Debug)]
pub struct Huber {
    delta: f32,
}

impl Huber {
    /// Creates the loss that is quadratic up to differences of `delta`, which must be above 0.
    pub fn new(delta: f32) -> Self {
        Self { delta }
    }
}

impl Default for Huber {
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl MeanSquaredError {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        (output - target).square()
    }
}

impl Loss for MeanSquaredError {
    fn name(&self) -> &str {
        "mean squared error"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    mean_of_quantities!();
}

impl MeanAbsoluteError {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        (output - target).abs()
    }
}

impl Loss for MeanAbsoluteError {
    fn name(&self) -> &str {
        "mean absolute error"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    mean_of_quantities!();
}

impl LogCosh {
    /// Traces |d| + ln(1 + e^(-2 |d|)) - ln 2, in which nothing overflows.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let distance = (output - target).abs();
        let rest = ((&distance * -2.0).exp() + 1.0).log();
        distance + (rest - LN_2)
    }
}

impl Loss for LogCosh {
    fn name(&self) -> &str {
        "log-cosh"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    mean_of_quantities!();
}

impl Huber {
    /// Traces c (|d| - c / 2) with c = min(|d|, delta), which is the same without a branch.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let distance = (output - target).abs();
        let near = distance.minimum(&distance.tape().constant(self.delta));
        &near * &(&distance - &near * 0.5)
    }
}

impl Loss for Huber {
    fn name(&self) -> &str {
        "huber"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        let valid = self.delta > 0.0 && self.delta.is_finite();
        valid.then(|| output.clone()).ok_or_else(|| format!("delta {} is not above 0", self.delta))
    }

    mean_of_quantities!();
}
