use unisono_graph::Var;

use super::settings::{kept_share, not_negative};
use super::{OptimizerSettings, Schedule, Update};

/// Adam's running averages of the gradient and of its square, and the correction of their start at zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    /// The share that the average of the gradient keeps in a step.
    pub beta1: f64,
    /// The share that the average of the square keeps in a step.
    pub beta2: f64,
    /// What is added to the root.
    pub epsilon: f64,
}

impl Moments {
    /// PyTorch's defaults: betas 0.9 and 0.999, epsilon 1e-8.
    pub const DEFAULT: Self = Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

    /// Checks the betas, which must be in [0, 1), and epsilon.
    pub fn check(&self) -> Result<(), String> {
        kept_share("beta1", self.beta1)?;
        kept_share("beta2", self.beta2)?;
        not_negative("epsilon", self.epsilon)
    }

    /// Returns a note on betas that were most likely given in the wrong order.
    pub fn notes(&self) -> Vec<String> {
        let Self { beta1, beta2, .. } = self;
        if beta1 <= beta2 {
            return Vec::new();
        }
        vec![format!(
            "betas({beta1}, {beta2}): the first is of the gradients and the second of their squares, which is the larger \
             one as a rule, such as 0.9 and 0.999"
        )]
    }

    /// Returns the settings of an optimizer with these averages, a learning rate and a weight decay.
    pub fn settings(&self, lr: &Schedule, weight_decay: f64) -> OptimizerSettings {
        OptimizerSettings::new()
            .schedule("lr", lr)
            .with("beta1", self.beta1)
            .with("beta2", self.beta2)
            .with("epsilon", self.epsilon)
            .with("weight_decay", weight_decay)
    }

    /// Returns 1 / (1 - beta1^t) with t = step + 1.
    pub fn first_correction(&self, step: u64) -> f64 {
        1.0 / (1.0 - libm::pow(self.beta1, (step + 1) as f64))
    }

    /// Returns 1 / sqrt(1 - beta2^t) with t = step + 1.
    pub fn second_correction(&self, step: u64) -> f64 {
        1.0 / (1.0 - libm::pow(self.beta2, (step + 1) as f64)).sqrt()
    }

    /// Traces m += (1 - b1)(g - m) and v += (1 - b2)(g^2 - v). Returns m / (sqrt(v) scale + epsilon), with
    /// the scalar `scale`.
    pub fn direction(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let (new_m, root) = self.advance(cx, weight, gradient);
        new_m / root
    }

    /// Traces m and v as [`Moments::direction`] does. Returns m and sqrt(v) scale + epsilon.
    pub fn advance(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> (Var, Var) {
        let (m, v) = (cx.state("exp_avg", weight), cx.state("exp_avg_sq", weight));
        let new_m = (gradient - &m) * (1.0 - self.beta1) as f32 + &m;
        let new_v = (gradient * gradient - &v) * (1.0 - self.beta2) as f32 + &v;
        cx.set(&m, &new_m);
        cx.set(&v, &new_v);
        let root = new_v.sqrt() * cx.scalar("scale") + self.epsilon as f32;
        (new_m, root)
    }
}

/// The setters of the averages, in an optimizer whose field `moments` has them.
macro_rules! setters {
    ($epsilon:literal) => {
        /// Sets the decay rates of the running averages of the gradient and of its square. Defaults: 0.9 and
        /// 0.999.
        pub fn betas(mut self, beta1: impl Into<f64>, beta2: impl Into<f64>) -> Self {
            (self.moments.beta1, self.moments.beta2) = (beta1.into(), beta2.into());
            self
        }

        #[doc = "Sets the term that is added to the denominator for numerical stability. Default: "]
        #[doc = concat!($epsilon, ".")]
        pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
            self.moments.epsilon = epsilon.into();
            self
        }
    };
}
pub(super) use setters;
