use unisono_graph::Var;

use super::settings::{above_zero, momentum, not_negative};
use super::update::{norm, ratio};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// LARS for large batches (You et al. 2017, algorithm 1): each tensor moves in proportion to its own norm.
///
/// ```text
/// r  = trust |w| / (|g| + decay |w|)
/// m  = momentum m + lr r (g + decay w)
/// w -= m
/// ```
///
/// The ratio r is taken as 1 where a norm is 0, and for parameters that are exempt from decay, which in the
/// authors' programs are biases and normalizations: see [`Optimizer::no_decay_for_biases_and_norms`].
///
/// States of a parameter: `momentum_buffer` (m), with its shape, unless the momentum is 0. Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct Lars {
    lr: Schedule,
    momentum: f64,
    weight_decay: f64,
    trust: f64,
}

impl Lars {
    /// Creates an optimizer with a learning rate and the paper's settings: momentum 0.9, trust 0.001. There
    /// is no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), momentum: 0.9, weight_decay: 0.0, trust: 0.001 }
    }

    /// Sets the momentum: the fraction of the last step that is added to the next one. Default: 0.9.
    pub fn momentum(self, momentum: impl Into<f64>) -> Self {
        Self { momentum: momentum.into(), ..self }
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }

    /// Sets how far a step with learning rate 1 moves a tensor, as a fraction of the tensor's norm. Default:
    /// 0.001.
    pub fn trust(self, trust: impl Into<f64>) -> Self {
        Self { trust: trust.into(), ..self }
    }
}

impl Optimizer for Lars {
    fn name(&self) -> &str {
        "lars"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        momentum(self.momentum)?;
        not_negative("weight_decay", self.weight_decay)?;
        above_zero("trust", self.trust)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("momentum", self.momentum)
            .with("weight_decay", self.weight_decay)
            .with("trust", self.trust);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let mut step = cx.coupled_decay(self.weight_decay, weight, gradient) * cx.scalar("lr");
        if cx.decays() {
            let (w, g) = (norm(weight), norm(gradient));
            let size = &w * self.weight_decay as f32 + &g;
            let [zero, one] = [0.0, 1.0].map(|x| g.tape().constant(x));
            step = step * g.greater(&zero).select(&ratio(&(w * self.trust as f32), &size), &one);
        }
        weight - cx.momentum(self.momentum, weight, &step)
    }
}
