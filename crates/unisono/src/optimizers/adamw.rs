use unisono_graph::Var;

use super::moments::Moments;
use super::{Optimizer, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019; PyTorch's `AdamW`).
///
/// m += (1 - b1)(g - m); v += (1 - b2)(g^2 - v); w = (1 - lr decay) w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps).
#[derive(Clone, Debug)]
pub struct AdamW {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl AdamW {
    /// PyTorch's defaults at a learning rate: betas 0.9 and 0.999, epsilon 1e-8, decay 0.01.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments::DEFAULT, weight_decay: 0.01 }
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

    /// The share of a weight that a step at learning rate 1 would take away.
    pub fn weight_decay(mut self, decay: impl Into<f64>) -> Self {
        self.weight_decay = decay.into();
        self
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &str {
        "adamw"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let lr = self.lr.at(step);
        vec![
            Scalar::new("kept", (1.0 - lr * self.weight_decay) as f32),
            Scalar::new("step", (lr * self.moments.first_correction(step)) as f32),
            Scalar::new("scale", self.moments.second_correction(step) as f32),
        ]
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let step = self.moments.direction(cx, weight, gradient) * cx.scalar("step");
        if cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}
