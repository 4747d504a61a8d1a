use unisono_graph::Var;

use super::{Optimizer, Scalar, Update};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019; PyTorch's `AdamW`).
///
/// m += (1 - b1)(g - m); v += (1 - b2)(g^2 - v); w = (1 - lr decay) w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    lr: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
}

impl AdamW {
    /// PyTorch's defaults at a learning rate: betas 0.9 and 0.999, epsilon 1e-8, decay 0.01.
    pub fn new(lr: f32) -> Self {
        Self { lr, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }

    /// How slowly the two averages move.
    pub fn betas(mut self, beta1: f32, beta2: f32) -> Self {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// The share of a weight that a step at learning rate 1 would take away.
    pub fn weight_decay(mut self, decay: f32) -> Self {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &str {
        "adamw"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let t = (step + 1) as f64;
        let correction = |beta: f32| 1.0 - libm::pow(f64::from(beta), t);
        let lr = f64::from(self.lr);
        vec![
            Scalar::new("kept", (1.0 - lr * f64::from(self.weight_decay)) as f32),
            Scalar::new("step", (lr / correction(self.beta1)) as f32),
            Scalar::new("scale", (1.0 / correction(self.beta2).sqrt()) as f32),
        ]
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let (m, v) = (cx.state("exp_avg", weight), cx.state("exp_avg_sq", weight));
        let new_m = (gradient - &m) * (1.0 - self.beta1) + &m;
        let new_v = (gradient * gradient - &v) * (1.0 - self.beta2) + &v;
        cx.set(&m, &new_m);
        cx.set(&v, &new_v);
        let size = new_v.sqrt() * cx.scalar("scale") + self.epsilon;
        weight * cx.scalar("kept") - (new_m / size) * cx.scalar("step")
    }
}
