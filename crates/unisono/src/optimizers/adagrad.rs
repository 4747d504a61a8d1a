use unisono_graph::Var;

use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adagrad (Duchi et al. 2011; PyTorch's `Adagrad`). Keras's adds epsilon under the root, and its sum starts
/// at 0.1.
///
/// ```text
/// g += decay w
/// s += g^2
/// w -= lr / (1 + step lr_decay) g / (sqrt(s) + epsilon)
/// ```
///
/// Steps are counted from 0.
///
/// States of a parameter: `sum` (s), with its shape. Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct Adagrad {
    lr: Schedule,
    lr_decay: f64,
    epsilon: f64,
    weight_decay: f64,
}

impl Adagrad {
    /// Creates an optimizer with a learning rate and PyTorch's defaults: epsilon 1e-10, no decay of weights
    /// or learning rate.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), lr_decay: 0.0, epsilon: 1e-10, weight_decay: 0.0 }
    }

    /// Sets the decay of the learning rate: its divisor grows by this in each step. Default: 0.
    pub fn lr_decay(self, decay: impl Into<f64>) -> Self {
        Self { lr_decay: decay.into(), ..self }
    }

    /// Sets the term that is added to the denominator for numerical stability. Default: 1e-10.
    pub fn epsilon(self, epsilon: impl Into<f64>) -> Self {
        Self { epsilon: epsilon.into(), ..self }
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for Adagrad {
    fn name(&self) -> &str {
        "adagrad"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", (self.lr.at(step) / (1.0 + step as f64 * self.lr_decay)) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        not_negative("lr_decay", self.lr_decay)?;
        not_negative("epsilon", self.epsilon)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("lr_decay", self.lr_decay)
            .with("epsilon", self.epsilon)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let sum = cx.state("sum", weight);
        let new_sum = &gradient * &gradient + &sum;
        cx.set(&sum, &new_sum);
        weight - gradient / (new_sum.sqrt() + self.epsilon as f32) * cx.scalar("lr")
    }
}
