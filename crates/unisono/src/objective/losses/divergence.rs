//! Losses of distributions: how far a predicted one is from that of the targets.

use std::f32::consts::TAU;

use unisono_data::{Field, Values};
use unisono_graph::{Type, Var};

use super::hinge::positive;
use super::{Loss, distributions, mean_of_quantities, mean_of_sample};

/// The least number whose logarithm is taken of a target. 0 ln 0 is so 0.
const LEAST: f32 = 1e-30;

/// Kullback-Leibler divergence of the targets y from the softmax of logits x: the sum over classes of y
/// (ln y - ln softmax(x)), the mean over a sample's other axes. A target of 0 adds 0.
///
/// With [`log_probabilities`](Self::log_probabilities), x is ln p already (PyTorch's
/// `KLDivLoss(reduction="batchmean")` of `[B, classes]`). Keras's `KLDivergence` takes p itself, which loses
/// digits.
///
/// Shapes: outputs and targets `[B, ..., classes]` to `[B]`, with targets that are probabilities.
///
/// Errors: outputs without an axis of classes, a target that is negative or not finite.
#[doc(alias = "KLDivLoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct KlDivergence {
    logs: bool,
}

/// Negative log-likelihood of counts that have a Poisson distribution (PyTorch's `PoissonNLLLoss`): the mean
/// over a sample's elements of e^x - y x, where the output x is the logarithm of the rate.
///
/// With [`rates`](Self::rates), x is the rate, and the loss is x - y ln(x + 1e-8) (Keras's `Poisson`,
/// which adds 1e-7). With [`full`](Self::full), Stirling's approximation of ln y! is added, which no
/// gradient needs.
///
/// Shapes: outputs x and counts y `[B, ...]` to `[B]`.
///
/// Errors: epsilon is not a finite number above 0, a count that is negative or not finite.
#[doc(alias = "PoissonNLLLoss")]
#[derive(Clone, Copy, Debug)]
pub struct PoissonNll {
    rates: bool,
    full: bool,
    epsilon: f32,
}

impl KlDivergence {
    /// Creates the loss of logits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes outputs that are logarithms of probabilities. Default: logits.
    pub fn log_probabilities(mut self) -> Self {
        self.logs = true;
        self
    }
}

impl PoissonNll {
    /// Creates the loss of logarithms of rates, without Stirling's approximation.
    pub fn new() -> Self {
        Self { rates: false, full: false, epsilon: 1e-8 }
    }

    /// Takes outputs that are rates, which must not be negative. Default: logarithms of rates.
    pub fn rates(self) -> Self {
        Self { rates: true, ..self }
    }

    /// Adds y ln y - y + ln(2 pi y) / 2 for counts y above 1. Default: it is left out.
    pub fn full(self) -> Self {
        Self { full: true, ..self }
    }

    /// Sets the term that is added to a rate before its logarithm is taken, which must be above 0. Default:
    /// 1e-8.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }
}

impl Default for PoissonNll {
    fn default() -> Self {
        Self::new()
    }
}

impl KlDivergence {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let logs = if self.logs { output.clone() } else { output.log_softmax() };
        let own = target.maximum(&target.tape().constant(LEAST)).log();
        (target * (own - logs)).sum(&[-1])
    }
}

impl Loss for KlDivergence {
    fn name(&self) -> &str {
        "kl divergence"
    }

    fn activation(&self) -> Option<&'static str> {
        (!self.logs).then_some("softmax")
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        if output.dims.is_empty() {
            return Err(format!("outputs need an axis of classes, the model gives {output}"));
        }
        Ok(output.clone())
    }

    mean_of_quantities!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        let classes = output.dims.last().copied().unwrap_or(1);
        let all = targets.values.as_f32().unwrap_or_default();
        distributions(all, classes, (output.count() / classes.max(1)).max(1))
    }
}

impl PoissonNll {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let mut loss = if self.rates {
            output - target * (output + self.epsilon).log()
        } else {
            output.exp() - target * output
        };
        if self.full {
            let [zero, one] = [0.0, 1.0].map(|x| target.tape().constant(x));
            let many = target.maximum(&one);
            let stirling = &many * many.log() - &many + (&many * TAU).log() * 0.5;
            loss = loss + target.greater(&one).select(&stirling, &zero);
        }
        loss
    }
}

impl Loss for PoissonNll {
    fn name(&self) -> &str {
        "poisson"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("epsilon", self.epsilon)?;
        Ok(output.clone())
    }

    mean_of_quantities!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        not_negative(output, targets)
    }
}

/// Checks that all targets are finite and not negative.
fn not_negative(output: &Type, targets: &Field) -> Result<(), (usize, String)> {
    let Values::F32(values) = &targets.values else { return Ok(()) };
    match values.iter().position(|y| !(*y >= 0.0 && y.is_finite())) {
        Some(at) => {
            Err((at / output.count().max(1), format!("target {} is negative or not finite", values[at])))
        }
        None => Ok(()),
    }
}
