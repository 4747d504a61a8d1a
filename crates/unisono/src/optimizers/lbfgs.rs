//! L-BFGS: the settings, and the rule that a training step traces.
//!
//! `descent` is the algorithm on the host, `search` its line search, `curvature` what it remembers between
//! steps.

pub(crate) mod curvature;
pub(crate) mod descent;
mod search;

#[cfg(test)]
mod tests;

use unisono_graph::Var;

use super::settings::{above_zero, not_negative};
use super::{Optimizer, OptimizerSettings, Scalar, Update};
use crate::objective::Epoch;

/// The name of the state with the gradient of a parameter.
pub(crate) const GRADIENT: &str = "gradient";

/// L-BFGS with a strong Wolfe line search, on all samples (PyTorch's `LBFGS` with
/// `line_search_fn="strong_wolfe"`, whose defaults these are; Nocedal and Wright 2006, chapter 7).
///
/// It evaluates the loss and the gradients of all samples several times in a step, so it is used with
/// [`Trainer::lbfgs_step`](crate::Trainer::lbfgs_step) instead of a fit. It suits small models and data:
/// regressions, networks of physics, fine-tuning to the last digits.
///
/// ```text
/// d  = -H g             H from the last pairs of steps s and gradient changes y (two-loop recursion)
/// t  : loss(w + t d) <= loss(w) + 1e-4 t g.d   and   |g(w + t d).d| <= 0.9 |g.d|
/// w += t d
/// ```
///
/// The replicas compute loss and gradients. The host adds batches up and computes d and t in f64, in the
/// order of the model's parameters, so the result is the same for any number of replicas.
///
/// States of a parameter: `gradient`, with its shape, the gradient of the last batch. The host keeps 2 f64
/// numbers for each parameter and pair of the history; checkpoints contain them. There are no scalars and no
/// schedule.
///
/// ```
/// use unisono::{Dense, Lbfgs, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).optimizer(Lbfgs::new().history_size(10));
/// ```
#[doc(alias = "LBFGS")]
#[derive(Clone, Debug)]
pub struct Lbfgs {
    lr: f64,
    max_iter: u32,
    max_eval: Option<u32>,
    tolerance_grad: f64,
    tolerance_change: f64,
    history_size: usize,
}

impl Lbfgs {
    /// Creates an optimizer with PyTorch's defaults.
    pub fn new() -> Self {
        Self {
            lr: 1.0,
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history_size: 100,
        }
    }

    /// Sets the length along the direction that a line search tries first, as a multiple of the direction.
    /// Default: 1. In the very first iteration it is divided by the sum of the gradient's absolute values if
    /// that is above 1.
    pub fn lr(self, lr: f64) -> Self {
        Self { lr, ..self }
    }

    /// Sets the number of iterations (directions) in a step. Default: 20.
    pub fn max_iter(self, iterations: u32) -> Self {
        Self { max_iter: iterations, ..self }
    }

    /// Sets the number of evaluations of all samples after which a step ends. Default: 5 / 4 of `max_iter`.
    pub fn max_eval(self, evaluations: u32) -> Self {
        Self { max_eval: Some(evaluations), ..self }
    }

    /// Sets the tolerance of the gradient: a step ends if no element's absolute value is larger. Default:
    /// 1e-7.
    pub fn tolerance_grad(self, tolerance: f64) -> Self {
        Self { tolerance_grad: tolerance, ..self }
    }

    /// Sets the tolerance of progress: a step ends if an iteration changes no parameter by more, or the loss
    /// by less. Default: 1e-9. Losses in f32 are exact to about 1e-7 of their size.
    pub fn tolerance_change(self, tolerance: f64) -> Self {
        Self { tolerance_change: tolerance, ..self }
    }

    /// Sets the number of pairs of steps and gradient changes that the host keeps. Default: 100.
    pub fn history_size(self, pairs: usize) -> Self {
        Self { history_size: pairs, ..self }
    }

    /// Returns the number of evaluations after which a step ends.
    fn most_evaluations(&self) -> u32 {
        self.max_eval.unwrap_or_else(|| (u64::from(self.max_iter) * 5 / 4).min(u32::MAX.into()) as u32)
    }
}

impl Default for Lbfgs {
    fn default() -> Self {
        Self::new()
    }
}

impl Optimizer for Lbfgs {
    fn name(&self) -> &str {
        "lbfgs"
    }

    fn scalars(&self, _: u64) -> Vec<Scalar> {
        Vec::new()
    }

    fn observe(&mut self, _: &[Epoch]) -> Result<(), String> {
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        above_zero("lr", self.lr)?;
        not_negative("tolerance_grad", self.tolerance_grad)?;
        not_negative("tolerance_change", self.tolerance_change)?;
        let counts = [("max_iter", self.max_iter), ("max_eval", self.most_evaluations())];
        let zero = counts.into_iter().find(|(_, count)| *count == 0);
        zero.map_or(Ok(()), |(name, _)| Err(format!("{name} is 0, and must be at least 1")))
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .with("lr", self.lr)
            .with("max_iter", self.max_iter)
            .with("max_eval", self.most_evaluations())
            .with("tolerance_grad", self.tolerance_grad)
            .with("tolerance_change", self.tolerance_change)
            .with("history_size", self.history_size);
        Some(settings)
    }

    /// Stores the gradient and leaves the weight as it is: the host moves it.
    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let stored = cx.state(GRADIENT, weight);
        cx.set(&stored, gradient);
        weight.clone()
    }

    fn of_all_samples(&self) -> Option<&Lbfgs> {
        Some(self)
    }
}
