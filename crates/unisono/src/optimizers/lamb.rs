use unisono_graph::Var;

use super::moments::Moments;
use super::update::{norm, ratio};
use super::{Optimizer, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// LAMB for large batches (You et al. 2020, algorithm 2 with phi(x) = x): Adam's direction, scaled to each tensor's norm.
///
/// d = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w; w -= lr |w| / |d| d. Where a norm is 0, and for what is
/// exempt from decay (biases and norms, as in the authors' programs), the ratio is 1.
#[derive(Clone, Debug)]
pub struct Lamb {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl Lamb {
    /// The paper's settings at a learning rate: betas 0.9 and 0.999, epsilon 1e-6, decay 0.01.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments { epsilon: 1e-6, ..Moments::DEFAULT }, weight_decay: 0.01 }
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

    /// With `decay` times the weight added to the direction.
    pub fn weight_decay(mut self, decay: impl Into<f64>) -> Self {
        self.weight_decay = decay.into();
        self
    }
}

impl Optimizer for Lamb {
    fn name(&self) -> &str {
        "lamb"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![
            Scalar::new("lr", self.lr.at(step) as f32),
            Scalar::new("first", self.moments.first_correction(step) as f32),
            Scalar::new("scale", self.moments.second_correction(step) as f32),
        ]
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let direction = self.moments.direction(cx, weight, gradient) * cx.scalar("first");
        let direction = cx.coupled_decay(self.weight_decay, weight, &direction);
        let lr = cx.scalar("lr");
        let size = if cx.decays() { ratio(&norm(weight), &norm(&direction)) * lr } else { lr };
        weight - direction * size
    }
}
