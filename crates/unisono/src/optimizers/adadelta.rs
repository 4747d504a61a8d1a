use unisono_graph::Var;

use super::settings::{above_zero, kept_share, not_negative};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adadelta (Zeiler 2012; PyTorch's and Keras's `Adadelta`).
///
/// ```text
/// g += decay w
/// v  = rho v + (1 - rho) g^2
/// d  = sqrt(a + epsilon) / sqrt(v + epsilon) g
/// a  = rho a + (1 - rho) d^2
/// w -= lr d
/// ```
///
/// States of a parameter, with its shape: `square_avg` (v) and `acc_delta` (a). Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct Adadelta {
    lr: Schedule,
    rho: f64,
    epsilon: f64,
    weight_decay: f64,
}

impl Adadelta {
    /// Creates an optimizer with a learning rate (PyTorch's and the paper's is 1) and PyTorch's defaults: rho
    /// 0.9, epsilon 1e-6, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self { lr: lr.into(), rho: 0.9, epsilon: 1e-6, weight_decay: 0.0 }
    }

    /// Sets the decay rate of both running averages. Default: 0.9 (Keras's is 0.95).
    pub fn rho(self, rho: impl Into<f64>) -> Self {
        Self { rho: rho.into(), ..self }
    }

    /// Sets the term that is added under both roots for numerical stability. It also gives the first steps
    /// their size. Default: 1e-6.
    pub fn epsilon(self, epsilon: impl Into<f64>) -> Self {
        Self { epsilon: epsilon.into(), ..self }
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for Adadelta {
    fn name(&self) -> &str {
        "adadelta"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        kept_share("rho", self.rho)?;
        above_zero("epsilon", self.epsilon)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("rho", self.rho)
            .with("epsilon", self.epsilon)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let (fresh, epsilon) = ((1.0 - self.rho) as f32, self.epsilon as f32);
        let (v, a) = (cx.state("square_avg", weight), cx.state("acc_delta", weight));
        let new_v = (&gradient * &gradient - &v) * fresh + &v;
        let delta = (&a + epsilon).sqrt() / (&new_v + epsilon).sqrt() * &gradient;
        let new_a = (&delta * &delta - &a) * fresh + &a;
        cx.set(&v, &new_v);
        cx.set(&a, &new_a);
        weight - delta * cx.scalar("lr")
    }
}
