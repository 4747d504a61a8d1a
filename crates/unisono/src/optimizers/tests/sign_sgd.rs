use unisono_graph::Var;

use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// signSGD with momentum (Bernstein et al. 2018): steps of one size in the direction of a sign.
///
/// ```text
/// m  = momentum m + g
/// w -= lr sign(m)
/// ```
///
/// States of a parameter: `momentum_buffer` (m), with its shape, unless the momentum is 0. Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct SignSgd {
    lr: Schedule,
    momentum: f64,
}

impl SignSgd {
    /// Creates an optimizer with a learning rate. By default it has no momentum.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), momentum: 0.0 }
    }

    /// Sets the momentum: the fraction of the last step that is added to the next one. Default: 0.
    pub fn momentum(mut self, momentum: impl Into<f64>) -> Self {
        self.momentum = momentum.into();
        self
    }
}

impl Optimizer for SignSgd {
    fn name(&self) -> &str {
        "sign_sgd"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        Some(OptimizerSettings::new().schedule("lr", &self.lr).with("momentum", self.momentum))
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let step = cx.momentum(self.momentum, weight, gradient).sign();
        weight - step * cx.scalar("lr")
    }
}
