use unisono_graph::Var;

use super::{Optimizer, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// RMSprop (Tieleman and Hinton 2012; PyTorch's `RMSprop`).
///
/// g += decay w; v = alpha v + (1 - alpha) g^2; d = g / (sqrt(v) + eps); m = momentum m + d; w -= lr m. Centred, v is taken
/// without the square of the mean gradient.
#[derive(Clone, Debug)]
pub struct RmsProp {
    lr: Schedule,
    alpha: f64,
    epsilon: f64,
    momentum: f64,
    centred: bool,
    weight_decay: f64,
}

impl RmsProp {
    /// PyTorch's defaults at a learning rate: alpha 0.99, epsilon 1e-8.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), alpha: 0.99, epsilon: 1e-8, momentum: 0.0, centred: false, weight_decay: 0.0 }
    }

    /// How slowly the average of the squares moves.
    pub fn alpha(mut self, alpha: impl Into<f64>) -> Self {
        self.alpha = alpha.into();
        self
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
        self.epsilon = epsilon.into();
        self
    }

    /// With momentum.
    pub fn momentum(mut self, momentum: impl Into<f64>) -> Self {
        self.momentum = momentum.into();
        self
    }

    /// Divides by the deviation of the gradient instead of its root mean square.
    pub fn centred(mut self) -> Self {
        self.centred = true;
        self
    }

    /// With `decay` times the weight added to the gradient.
    pub fn weight_decay(mut self, decay: impl Into<f64>) -> Self {
        self.weight_decay = decay.into();
        self
    }
}

impl Optimizer for RmsProp {
    fn name(&self) -> &str {
        "rmsprop"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let fresh = (1.0 - self.alpha) as f32;
        let v = cx.state("square_avg", weight);
        let new_v = (&gradient * &gradient - &v) * fresh + &v;
        cx.set(&v, &new_v);
        let spread = if self.centred {
            let mean = cx.state("grad_avg", weight);
            let new_mean = (&gradient - &mean) * fresh + &mean;
            cx.set(&mean, &new_mean);
            // Rounding must not take it below 0.
            (&new_v - new_mean.square()).relu()
        } else {
            new_v
        };
        let step = gradient / (spread.sqrt() + self.epsilon as f32);
        weight - cx.momentum(self.momentum, weight, &step) * cx.scalar("lr")
    }
}
