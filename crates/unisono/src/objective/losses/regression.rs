//! Distances between an output and a target of the same shape, averaged over a sample's elements.

use unisono_graph::{Type, Var};

use super::{Loss, mean_of_sample};

/// The mean of the squared differences over a sample's elements (PyTorch's `MSELoss`, Keras's `MeanSquaredError`).
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

/// The mean of the absolute differences over a sample's elements (PyTorch's `L1Loss`, Keras's `MeanAbsoluteError`).
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanAbsoluteError;

/// Half the squared difference up to delta, delta (|difference| - delta / 2) beyond (Huber 1964; PyTorch's `HuberLoss`, Keras's
/// `Huber`), the mean over a sample's elements.
#[derive(Clone, Copy, Debug)]
pub struct Huber {
    delta: f32,
}

impl Huber {
    /// Quadratic up to `delta`, which is above 0.
    pub fn new(delta: f32) -> Self {
        Self { delta }
    }
}

/// Delta 1.
impl Default for Huber {
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl Loss for MeanSquaredError {
    fn name(&self) -> &str {
        "mean squared error"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        mean_of_sample(&(output - target).square())
    }
}

impl Loss for MeanAbsoluteError {
    fn name(&self) -> &str {
        "mean absolute error"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        mean_of_sample(&(output - target).abs())
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

    /// With c = min(|d|, delta): c (|d| - c / 2).
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let distance = (output - target).abs();
        let near = distance.minimum(&distance.tape().constant(self.delta));
        mean_of_sample(&(&near * &(&distance - &near * 0.5)))
    }
}
