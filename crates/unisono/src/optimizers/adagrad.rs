use unisono_graph::Var;

use super::{Optimizer, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// Adagrad (Duchi et al. 2011; PyTorch's `Adagrad`).
///
/// g += decay w; s += g^2; w -= lr / (1 + step lr_decay) g / (sqrt(s) + eps).
#[derive(Clone, Debug)]
pub struct Adagrad {
    lr: Schedule,
    lr_decay: f64,
    epsilon: f64,
    weight_decay: f64,
}

impl Adagrad {
    /// PyTorch's defaults at a learning rate: epsilon 1e-10.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), lr_decay: 0.0, epsilon: 1e-10, weight_decay: 0.0 }
    }

    /// How fast the learning rate falls by itself.
    pub fn lr_decay(mut self, decay: impl Into<f64>) -> Self {
        self.lr_decay = decay.into();
        self
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
        self.epsilon = epsilon.into();
        self
    }

    /// With `decay` times the weight added to the gradient.
    pub fn weight_decay(mut self, decay: impl Into<f64>) -> Self {
        self.weight_decay = decay.into();
        self
    }
}

impl Optimizer for Adagrad {
    fn name(&self) -> &str {
        "adagrad"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", (self.lr.at(step) / (1.0 + step as f64 * self.lr_decay)) as f32)]
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let sum = cx.state("sum", weight);
        let new_sum = &gradient * &gradient + &sum;
        cx.set(&sum, &new_sum);
        weight - gradient / (new_sum.sqrt() + self.epsilon as f32) * cx.scalar("lr")
    }
}
