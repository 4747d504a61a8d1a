use unisono_graph::Var;

use super::settings::not_negative;
use super::{Optimizer, OptimizerSettings, Scalar, Schedule, Update};

/// Adafactor (Shazeer and Stern 2018; PyTorch's `Adafactor`): of the average of the squared gradients of a
/// matrix it keeps the means of rows and columns only, which takes r + c numbers in place of r c.
///
/// ```text
/// f  = t^beta2_decay,   a = max(e2, rms(w)) min(lr, 1 / sqrt(t))
/// r += f (mean of g^2 over the last axis - r)
/// c += f (mean of g^2 over the last axis but one - c)
/// v  = r c / max(mean of r over the last axis but one, e1)
/// u  = g / sqrt(max(v, e1^2))
/// w  = (1 - lr decay) w - a u / max(1, rms(u) / d)
/// ```
///
/// The step t is counted from 1, and rms is the root of the mean square of a tensor. Tensors with fewer
/// than two axes have v += f (g^2 - v). There is no momentum.
///
/// States of a parameter `[..., r, c]`: `row_var` `[..., r, 1]` and `col_var` `[..., 1, c]`; of one with
/// fewer than two axes `variance`, with its shape. Scalars: `rate` (min(lr, 1 / sqrt(t))), `fresh` (f) and
/// `kept` (1 - lr decay).
#[derive(Clone, Debug)]
pub struct Adafactor {
    lr: Schedule,
    beta2_decay: f64,
    epsilon1: f64,
    epsilon2: f64,
    clip: f64,
    weight_decay: f64,
}

impl Adafactor {
    /// Creates an optimizer with a learning rate (PyTorch's is 1e-2), which is relative to the size of each
    /// tensor, and PyTorch's defaults: beta2 decay -0.8, epsilons 1.2e-7 and 1e-3, d 1, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self {
            lr: lr.into(),
            beta2_decay: -0.8,
            epsilon1: f64::from(f32::EPSILON),
            epsilon2: 1e-3,
            clip: 1.0,
            weight_decay: 0.0,
        }
    }

    /// Sets the power of the step by which the share of a new squared gradient falls, which must not be above
    /// 0. Default: -0.8.
    pub fn beta2_decay(self, decay: impl Into<f64>) -> Self {
        Self { beta2_decay: decay.into(), ..self }
    }

    /// Sets the least root mean square of gradients and of a tensor. The first must be at least 1e-18, so
    /// that its square is no subnormal f32. Defaults: 1.2e-7 and 1e-3.
    pub fn epsilons(mut self, gradient: impl Into<f64>, tensor: impl Into<f64>) -> Self {
        (self.epsilon1, self.epsilon2) = (gradient.into(), tensor.into());
        self
    }

    /// Sets d, the root mean square above which a step is scaled down to it. It must be above 0. Default: 1.
    pub fn clip(self, d: impl Into<f64>) -> Self {
        Self { clip: d.into(), ..self }
    }

    /// Sets the decoupled weight decay: each step multiplies the weight by 1 - lr decay. Default: 0.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }

    /// Traces the running average of the squared gradient, whole or by rows and columns. Returns v.
    fn variance(&self, cx: &mut Update, gradient: &Var) -> Var {
        let fresh = cx.scalar("fresh");
        let mut average = |name: &str, now: &Var| {
            let old = cx.state(name, now);
            let new = (now - &old) * &fresh + &old;
            cx.set(&old, &new);
            new
        };
        let square = gradient.square();
        if gradient.dims().len() < 2 {
            return average("variance", &square);
        }
        let rows = average("row_var", &mean_keep(&square, -1));
        let columns = average("col_var", &mean_keep(&square, -2));
        let least = gradient.tape().constant(self.epsilon1 as f32);
        &rows * &columns / mean_keep(&rows, -2).maximum(&least)
    }
}

impl Optimizer for Adafactor {
    fn name(&self) -> &str {
        "adafactor"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let (lr, t) = (self.lr.at(step), (step + 1) as f64);
        vec![
            Scalar::new("rate", lr.min(1.0 / t.sqrt()) as f32),
            Scalar::new("fresh", libm::pow(t, self.beta2_decay) as f32),
            Scalar::new("kept", (1.0 - lr * self.weight_decay) as f32),
        ]
    }

    one_schedule!();

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        if !(self.beta2_decay <= 0.0 && self.beta2_decay.is_finite()) {
            return Err(format!("beta2_decay is {}, and must be finite and not above 0", self.beta2_decay));
        }
        for (setting, value, least) in [("epsilon1", self.epsilon1, 1e-18), ("clip", self.clip, 1e-18)] {
            if !(value >= least && (value as f32).is_finite()) {
                return Err(format!("{setting} is {value}, and must be finite and at least {least:e}"));
            }
        }
        not_negative("epsilon2", self.epsilon2)?;
        not_negative("weight_decay", self.weight_decay)
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("beta2_decay", self.beta2_decay)
            .with("epsilon1", self.epsilon1)
            .with("epsilon2", self.epsilon2)
            .with("clip", self.clip)
            .with("weight_decay", self.weight_decay);
        Some(settings)
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let number = |x: f64| weight.tape().constant(x as f32);
        let variance = self.variance(cx, gradient).maximum(&number(self.epsilon1 * self.epsilon1));
        let update = gradient / variance.sqrt();
        let size = rms(weight).maximum(&number(self.epsilon2)) * cx.scalar("rate");
        let clip = (rms(&update) / self.clip as f32).maximum(&number(1.0));
        let step = update * (size / clip);
        if cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}

/// Returns the root of the mean square of a tensor, `[]`.
fn rms(x: &Var) -> Var {
    (x.square().sum_all() / x.ty().count() as f32).sqrt()
}

/// Returns the mean over an axis, which stays with length 1.
fn mean_keep(x: &Var, axis: isize) -> Var {
    let sum = x.sum_keep(&[axis]);
    let n = x.ty().count() / sum.ty().count().max(1);
    sum / n as f32
}
