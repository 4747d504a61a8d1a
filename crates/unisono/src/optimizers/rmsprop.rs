use unisono_graph::Var;

use super::settings::{kept_share, momentum, not_negative};
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// RMSprop (Tieleman and Hinton 2012; PyTorch's `RMSprop`). Keras's `RMSprop` differs in two ways: it adds
/// epsilon [under the root](Self::epsilon_under_root), and its momentum sums steps that are already
/// multiplied by the learning rate.
///
/// ```text
/// g += decay w
/// v  = alpha v + (1 - alpha) g^2
/// d  = g / (sqrt(v) + epsilon)
/// m  = momentum m + d
/// w -= lr m
/// ```
///
/// If it is [`centered`](Self::centered), a = alpha a + (1 - alpha) g, and d is taken with v - a^2 instead of
/// v.
///
/// States of a parameter, with its shape: `square_avg` (v), `grad_avg` (a) if it is centred, and
/// `momentum_buffer` (m) unless the momentum is 0. Scalars: `lr`.
#[derive(Clone, Debug)]
pub struct RmsProp {
    lr: Schedule,
    alpha: f64,
    epsilon: f64,
    is_under_root: bool,
    momentum: f64,
    centered: bool,
    weight_decay: f64,
}

impl RmsProp {
    /// Creates an optimizer with a learning rate and PyTorch's defaults: alpha 0.99, epsilon 1e-8, no
    /// momentum and no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self {
            lr: lr.into(),
            alpha: 0.99,
            epsilon: 1e-8,
            is_under_root: false,
            momentum: 0.0,
            centered: false,
            weight_decay: 0.0,
        }
    }

    /// Sets the decay rate of the running average of the squared gradient. Default: 0.99.
    pub fn alpha(self, alpha: impl Into<f64>) -> Self {
        Self { alpha: alpha.into(), ..self }
    }

    /// Sets the term that is added to the denominator for numerical stability. Default: 1e-8.
    pub fn epsilon(self, epsilon: impl Into<f64>) -> Self {
        Self { epsilon: epsilon.into(), ..self }
    }

    /// Divides by sqrt(v + epsilon), as Keras does with its epsilon of 1e-7. Default: by sqrt(v) + epsilon.
    ///
    /// Weights with small gradients then move less: an epsilon of 1e-7 under the root is 3e-4 behind it.
    pub fn epsilon_under_root(self) -> Self {
        Self { is_under_root: true, ..self }
    }

    /// Sets the momentum: the fraction of the last step that is added to the next one. Default: 0.
    pub fn momentum(self, momentum: impl Into<f64>) -> Self {
        Self { momentum: momentum.into(), ..self }
    }

    /// Divides by the standard deviation of the gradient. Default: by its root mean square.
    pub fn centered(self) -> Self {
        Self { centered: true, ..self }
    }

    /// Sets the coupled weight decay: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }
}

impl Optimizer for RmsProp {
    fn name(&self) -> &str {
        "rmsprop"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        vec![Scalar::new("lr", self.lr.at(step) as f32)]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        kept_share("alpha", self.alpha)?;
        not_negative("epsilon", self.epsilon)?;
        momentum(self.momentum)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("alpha", self.alpha)
            .with("epsilon", self.epsilon)
            .with("momentum", self.momentum)
            .with("centred", self.centered)
            .with("weight_decay", self.weight_decay);
        // A run without this setting has the identity that it had before there was one.
        Some(if self.is_under_root { settings.with("epsilon_under_root", true) } else { settings })
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let gradient = cx.coupled_decay(self.weight_decay, weight, gradient);
        let fresh = (1.0 - self.alpha) as f32;
        let v = cx.state("square_avg", weight);
        let new_v = (&gradient * &gradient - &v) * fresh + &v;
        cx.set(&v, &new_v);
        let spread = if self.centered {
            let mean = cx.state("grad_avg", weight);
            let new_mean = (&gradient - &mean) * fresh + &mean;
            cx.set(&mean, &new_mean);
            // Rounding must not make the variance negative.
            (&new_v - new_mean.square()).relu()
        } else {
            new_v
        };
        let epsilon = self.epsilon as f32;
        let root = if self.is_under_root { (spread + epsilon).sqrt() } else { spread.sqrt() + epsilon };
        let step = gradient / root;
        weight - cx.momentum(self.momentum, weight, &step) * cx.scalar("lr")
    }
}
