use std::sync::{Mutex, PoisonError};

use unisono_graph::Var;

use super::moments::Moments;
use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adam with Nesterov momentum (Dozat 2016; PyTorch's `NAdam`). Keras's `Nadam` has the schedule of
/// `momentum_decay(1.0)`, and epsilon 1e-7.
///
/// ```text
/// g  += decay w
/// mu(t) = b1 (1 - 0.96^(t momentum_decay) / 2),   p(t) = mu(1) mu(2) ... mu(t)
/// m  += (1 - b1) (g - m)
/// v  += (1 - b2) (g^2 - v)
/// d   = (1 - mu(t)) / (1 - p(t)) g + mu(t + 1) / (1 - p(t + 1)) m
/// w  -= lr d / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
///
/// The step t is counted from 1. With [`decoupled`](Self::decoupled) weight decay, decay w is not added to g,
/// and w is multiplied by 1 - lr decay first.
///
/// States of a parameter, with its shape: `exp_avg` (m) and `exp_avg_sq` (v). Scalars: `fresh` and `past`,
/// the factors lr (1 - mu(t)) / (1 - p(t)) of g and lr mu(t + 1) / (1 - p(t + 1)) of m, `scale` (1 /
/// sqrt(1 - b2^t)), and `kept` (1 - lr decay) where decay is decoupled.
#[derive(Clone, Debug)]
pub struct NAdam {
    lr: Schedule,
    moments: Moments,
    momentum_decay: f64,
    weight_decay: f64,
    decoupled: bool,
    products: Products,
}

/// The last two steps t that p(t) was asked for, with p(t): a step goes on from them, because a run has
/// millions of steps. Copies start anew, as their settings may change.
#[derive(Debug)]
struct Products(Mutex<[(u64, f64); 2]>);

impl Default for Products {
    fn default() -> Self {
        Self(Mutex::new([(0, 1.0); 2]))
    }
}

impl Clone for Products {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl NAdam {
    /// Creates an optimizer with a learning rate (PyTorch's is 2e-3) and PyTorch's defaults: betas 0.9 and
    /// 0.999, epsilon 1e-8, momentum decay 4e-3, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self {
            lr: lr.into(),
            moments: Moments::DEFAULT,
            momentum_decay: 4e-3,
            weight_decay: 0.0,
            decoupled: false,
            products: Products::default(),
        }
    }

    /// Sets the decay rates of the running averages of the gradient and of its square. Defaults: 0.9 and
    /// 0.999.
    pub fn betas(mut self, beta1: impl Into<f64>, beta2: impl Into<f64>) -> Self {
        (self.moments.beta1, self.moments.beta2) = (beta1.into(), beta2.into());
        self.products = Products::default();
        self
    }

    /// Sets the term that is added to the denominator for numerical stability. Default: 1e-8.
    pub fn epsilon(mut self, epsilon: impl Into<f64>) -> Self {
        self.moments.epsilon = epsilon.into();
        self
    }

    /// Sets how fast the momentum mu rises from half of beta1 to beta1. Default: 4e-3.
    pub fn momentum_decay(mut self, decay: impl Into<f64>) -> Self {
        self.momentum_decay = decay.into();
        self.products = Products::default();
        self
    }

    /// Sets the weight decay, which is coupled: decay times the weight is added to the gradient. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }

    /// Decouples the weight decay, as in [`AdamW`](super::AdamW): each step multiplies the weight by 1 - lr
    /// decay (PyTorch's `decoupled_weight_decay=True`). Default: it is coupled.
    pub fn decoupled(self) -> Self {
        Self { decoupled: true, ..self }
    }

    /// Returns mu(t).
    fn momentum(&self, t: u64) -> f64 {
        self.moments.beta1 * (1.0 - 0.5 * libm::pow(0.96, t as f64 * self.momentum_decay))
    }

    /// Returns p(t), or 0 where it is so small that 1 - p(t) is 1.
    fn product(&self, t: u64) -> f64 {
        let mut known = self.products.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.into_iter().rfind(|(before, _)| *before <= t);
        let (first, mut product) = before.unwrap_or((0, 1.0));
        for i in first + 1..=t {
            product *= self.momentum(i);
            // All factors are below 1.
            if product < 1e-18 {
                product = 0.0;
                break;
            }
        }
        // A step that is made again, or looked ahead to, is near the last one.
        let [_, last] = *known;
        if t > last.0 {
            *known = [last, (t, product)];
        } else if before.is_none() {
            *known = [(0, 1.0), (t, product)];
        }
        product
    }
}

impl Optimizer for NAdam {
    fn name(&self) -> &str {
        "nadam"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let (lr, t) = (self.lr.at(step), step + 1);
        let (before, next) = (self.product(t), self.momentum(t + 1));
        let mut scalars = vec![
            Scalar::new("fresh", (lr * (1.0 - self.momentum(t)) / (1.0 - before)) as f32),
            Scalar::new("past", (lr * next / (1.0 - before * next)) as f32),
            Scalar::new("scale", self.moments.second_correction(step) as f32),
        ];
        if self.decoupled {
            scalars.push(Scalar::new("kept", (1.0 - lr * self.weight_decay) as f32));
        }
        scalars
    }

    one_schedule!();

    fn notes(&self) -> Vec<String> {
        self.moments.notes()
    }

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        self.moments.check()?;
        not_negative("momentum_decay", self.momentum_decay)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("beta1", self.moments.beta1)
            .with("beta2", self.moments.beta2)
            .with("epsilon", self.moments.epsilon)
            .with("momentum_decay", self.momentum_decay)
            .with("weight_decay", self.weight_decay)
            .with("decoupled", self.decoupled);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let coupled = if self.decoupled { 0.0 } else { self.weight_decay };
        let gradient = cx.coupled_decay(coupled, weight, gradient);
        let (new_m, root) = self.moments.advance(cx, weight, &gradient);
        let direction = gradient * cx.scalar("fresh") + new_m * cx.scalar("past");
        let step = direction / root;
        if self.decoupled && cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_goes_on_from_the_last_steps_with_the_same_bits() {
        let made = || NAdam::new(0.1).betas(0.99, 0.999);
        let optimizer = made();
        for t in [1, 2, 3, 2, 3, 9, 8, 9, 500, 499, 4, 5, 0, 5000, 5001, 4000, 30] {
            assert_eq!(optimizer.product(t).to_bits(), made().product(t).to_bits(), "{t}");
        }
        assert_eq!(optimizer.product(5002), 0.0);
        optimizer.products.0.lock().unwrap()[1] = (7000, 0.5);
        assert_eq!(optimizer.product(7001), 0.5 * optimizer.momentum(7001), "it begins at the first step");
        let other = optimizer.clone().betas(0.9, 0.999);
        assert_eq!(other.product(3), NAdam::new(0.1).product(3));
    }
}
