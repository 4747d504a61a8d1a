use unisono_graph::Var;

use super::settings::{kept_share, not_negative};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Lion (Chen et al. 2023; Keras's `Lion`): steps of one size in the direction of a sign, with decoupled
/// weight decay.
///
/// ```text
/// d = sign(b1 m + (1 - b1) g)
/// m = b2 m + (1 - b2) g
/// w = (1 - lr decay) w - lr d
/// ```
///
/// The authors take a learning rate that is 3 to 10 times smaller than that of AdamW, and a weight decay
/// that is larger by as much.
///
/// States of a parameter: `exp_avg` (m), with its shape. Scalars: `lr` and `kept` (1 - lr decay).
#[derive(Clone, Debug)]
pub struct Lion {
    lr: Schedule,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
}

impl Lion {
    /// Creates an optimizer with a learning rate (the paper's is 1e-4) and the paper's settings: betas 0.9
    /// and 0.99, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }

    /// Sets the weight of the running average in the direction of a step, and the decay rate of the average.
    /// Defaults: 0.9 and 0.99.
    pub fn betas(mut self, beta1: impl Into<f64>, beta2: impl Into<f64>) -> Self {
        (self.beta1, self.beta2) = (beta1.into(), beta2.into());
        self
    }

    /// Sets the decoupled weight decay: each step multiplies the weight by 1 - lr decay. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for Lion {
    fn name(&self) -> &str {
        "lion"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let lr = self.lr.at(step);
        vec![Scalar::new("lr", lr as f32), Scalar::new("kept", (1.0 - lr * self.weight_decay) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        kept_share("beta1", self.beta1)?;
        kept_share("beta2", self.beta2)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("beta1", self.beta1)
            .with("beta2", self.beta2)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let m = cx.state("exp_avg", weight);
        let towards = gradient - &m;
        let direction = (&towards * (1.0 - self.beta1) as f32 + &m).sign();
        let new_m = towards * (1.0 - self.beta2) as f32 + &m;
        cx.set(&m, &new_m);
        let step = direction * cx.scalar("lr");
        if cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}
