use unisono_graph::Var;

use super::moments::Moments;
use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019; PyTorch's `AdamW`). Keras's `AdamW` adds
/// epsilon to the root of the uncorrected average, and has other defaults: weight decay 0.004 and epsilon
/// 1e-7.
///
/// ```text
/// m += (1 - b1) (g - m)
/// v += (1 - b2) (g^2 - v)
/// w  = (1 - lr decay) w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
///
/// The step t is counted from 1.
///
/// States of a parameter: `exp_avg` (m) and `exp_avg_sq` (v), with its shape. Scalars: `kept` (1 - lr decay),
/// `step` (lr / (1 - b1^t)) and `scale` (1 / sqrt(1 - b2^t)).
#[derive(Clone, Debug)]
pub struct AdamW {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl AdamW {
    /// Creates an optimizer with a learning rate and PyTorch's defaults: betas 0.9 and 0.999, epsilon 1e-8,
    /// weight decay 0.01.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments::DEFAULT, weight_decay: 0.01 }
    }

    super::moments::setters!("1e-8");

    /// Sets the decoupled weight decay: each step multiplies the weight by 1 - lr decay. Default: 0.01.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
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
        let step = self.moments.direction(cx, weight, gradient) * cx.scalar("step");
        if cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}
