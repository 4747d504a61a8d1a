use unisono_graph::Var;

use super::moments::Moments;
use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adam with coupled weight decay (Kingma and Ba 2015; PyTorch's `Adam`). With weight decay,
/// [`AdamW`](super::AdamW) is usually better.
///
/// ```text
/// g += decay w
/// m += (1 - b1) (g - m)
/// v += (1 - b2) (g^2 - v)
/// w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
///
/// The step t is counted from 1.
///
/// States of a parameter: `exp_avg` (m) and `exp_avg_sq` (v), with its shape. Scalars: `step` (lr / (1 -
/// b1^t)) and `scale` (1 / sqrt(1 - b2^t)).
#[derive(Clone, Debug)]
pub struct Adam {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl Adam {
    /// Creates an optimizer with a learning rate and PyTorch's defaults: betas 0.9 and 0.999, epsilon 1e-8,
    /// no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments::DEFAULT, weight_decay: 0.0 }
    }

    super::moments::setters!("1e-8");

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
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

    one_schedule!();

    fn notes(&self) -> Vec<String> {
        self.moments.notes()
    }

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        self.moments.check()?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        Some(self.moments.settings(&self.lr, self.weight_decay))
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        weight - self.moments.direction(cx, weight, &gradient) * cx.scalar("step")
    }
}
