use unisono_graph::Var;

use super::moments::Moments;
use super::settings::not_negative;
use super::update::{norm, ratio};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// LAMB for large batches (You et al. 2020, algorithm 2 with phi(x) = x): Adam's direction, scaled to each
/// tensor's norm.
///
/// ```text
/// m += (1 - b1) (g - m)
/// v += (1 - b2) (g^2 - v)
/// d  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w
/// w -= lr |w| / |d| d
/// ```
///
/// The step t is counted from 1. The ratio |w| / |d| is taken as 1 where a norm is 0, and for parameters that
/// are exempt from decay, which in the authors' programs are biases and normalizations: see
/// [`Optimizer::no_decay_for_biases_and_norms`].
///
/// States of a parameter: `exp_avg` (m) and `exp_avg_sq` (v), with its shape. Scalars: `lr`, `first`, which
/// is 1 / (1 - b1^t), and `scale`, which is 1 / sqrt(1 - b2^t).
#[derive(Clone, Debug)]
pub struct Lamb {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl Lamb {
    /// Creates an optimizer with a learning rate and the paper's settings: betas 0.9 and 0.999, epsilon 1e-6,
    /// weight decay 0.01.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments { epsilon: 1e-6, ..Moments::DEFAULT }, weight_decay: 0.01 }
    }

    super::moments::setters!("1e-6");

    /// Sets the weight decay: decay times the weight is added to the direction. Default: 0.01.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
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
        let direction = self.moments.direction(cx, weight, gradient) * cx.scalar("first");
        let direction = cx.coupled_decay(self.weight_decay, weight, &direction);
        let lr = cx.scalar("lr");
        let size = if cx.decays() { ratio(&norm(weight), &norm(&direction)) * lr } else { lr };
        weight - direction * size
    }
}
