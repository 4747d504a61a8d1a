use unisono_graph::Var;

use super::moments::Moments;
use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adamax (Kingma and Ba 2015, section 7.1; PyTorch's `Adamax`): Adam with a decaying maximum of the
/// gradient's magnitude in place of its root mean square. Keras's `Adamax` adds epsilon behind the maximum.
///
/// ```text
/// g += decay w
/// m += (1 - b1) (g - m)
/// u  = max(b2 u, |g| + epsilon)
/// w -= lr / (1 - b1^t) m / u
/// ```
///
/// The step t is counted from 1.
///
/// States of a parameter, with its shape: `exp_avg` (m) and `exp_inf` (u). Scalars: `step` (lr / (1 - b1^t)).
#[derive(Clone, Debug)]
pub struct Adamax {
    lr: Schedule,
    moments: Moments,
    weight_decay: f64,
}

impl Adamax {
    /// Creates an optimizer with a learning rate (PyTorch's is 2e-3) and PyTorch's defaults: betas 0.9 and
    /// 0.999, epsilon 1e-8, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), moments: Moments::DEFAULT, weight_decay: 0.0 }
    }

    /// Sets the decay rates of the running average of the gradient and of its largest magnitude. Defaults:
    /// 0.9 and 0.999.
    pub fn betas(mut self, beta1: impl Into<f64>, beta2: impl Into<f64>) -> Self {
        (self.moments.beta1, self.moments.beta2) = (beta1.into(), beta2.into());
        self
    }

    /// Sets the term that is added to the gradient's magnitude for numerical stability. It must be at least
    /// the least normal f32, 1.2e-38. Default: 1e-8.
    pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
        self.moments.epsilon = epsilon.into();
        self
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for Adamax {
    fn name(&self) -> &str {
        "adamax"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("step", (self.lr.at(step) * self.moments.first_correction(step)) as f32)]
    }

    one_schedule!();

    fn notes(&self) -> Vec<String> {
        self.moments.notes()
    }

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        self.moments.check()?;
        if self.moments.epsilon < f64::from(f32::MIN_POSITIVE) {
            return Err(format!("epsilon is {}, and must be at least 1.2e-38", self.moments.epsilon));
        }
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("beta1", self.moments.beta1)
            .with("beta2", self.moments.beta2)
            .with("epsilon", self.moments.epsilon)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let (m, u) = (cx.state("exp_avg", weight), cx.state("exp_inf", weight));
        let new_m = (&gradient - &m) * (1.0 - self.moments.beta1) as f32 + &m;
        let faded = &u * self.moments.beta2 as f32;
        let new_u = faded.maximum(&(gradient.abs() + self.moments.epsilon as f32));
        cx.set(&m, &new_m);
        cx.set(&u, &new_u);
        weight - new_m / new_u * cx.scalar("step")
    }
}
