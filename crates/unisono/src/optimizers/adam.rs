use unisono_graph::Var;

use super::moments::Moments;
use super::{Optimizer, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// Adam (Kingma and Ba 2015) with coupled weight decay (PyTorch's `Adam`). [`super::AdamW`] is what most want instead.
///
/// g += decay w; m += (1 - b1)(g - m); v += (1 - b2)(g^2 - v); w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps).
#[derive(Clone, Debug)]
pub struct Adam {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl Adam {
    /// PyTorch's defaults at a learning rate: betas 0.9 and 0.999, epsilon 1e-8, no decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments::DEFAULT, weight_decay: 0.0 }
    }

    /// How slowly the two averages move.
    pub fn betas(mut self, beta1: impl Into<f64>, beta2: impl Into<f64>) -> Self {
        (self.moments.beta1, self.moments.beta2) = (beta1.into(), beta2.into());
        self
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
        self.moments.epsilon = epsilon.into();
        self
    }

    /// With `decay` times the weight added to the gradient.
    pub fn weight_decay(mut self, decay: impl Into<f64>) -> Self {
        self.weight_decay = decay.into();
        self
    }
}

impl Optimizer for Adam {
    fn name(&self) -> &str {
        "adam"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![
            Scalar::new("step", (self.lr.at(step) * self.moments.first_correction(step)) as f32),
            Scalar::new("scale", self.moments.second_correction(step) as f32),
        ]
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        weight - self.moments.direction(cx, weight, &gradient) * cx.scalar("step")
    }
}
