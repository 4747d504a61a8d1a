use unisono_graph::Var;

use super::settings::{momentum, not_negative};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Stochastic gradient descent with momentum and coupled weight decay (PyTorch's `SGD` without dampening).
///
/// ```text
/// g += decay w
/// m  = momentum m + g
/// w -= lr m
/// ```
///
/// With Nesterov's momentum the last line is w -= lr (g + momentum m).
///
/// States of a parameter: `momentum_buffer` (m), with its shape, unless the momentum is 0. Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct Sgd {
    lr: Schedule,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
}

impl Sgd {
    /// Creates an optimizer with a learning rate. By default it has no momentum and no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Sets the momentum: the fraction of the last step that is added to the next one. Default: 0.
    pub fn momentum(self, momentum: impl Into<f64>) -> Self {
        Self { momentum: momentum.into(), ..self }
    }

    /// Uses Nesterov's momentum, which looks one step ahead (Sutskever et al. 2013). Default: plain momentum.
    pub fn nesterov(self) -> Self {
        Self { nesterov: true, ..self }
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &str {
        "sgd"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        momentum(self.momentum)?;
        if self.nesterov && self.momentum == 0.0 {
            return Err("nesterov needs a momentum above 0".into());
        }
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("momentum", self.momentum)
            .with("nesterov", self.nesterov)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let step = cx.momentum(self.momentum, weight, &gradient);
        let step = if self.nesterov { step * self.momentum as f32 + gradient } else { step };
        weight - step * cx.scalar("lr")
    }
}
