//! Metrics: a number for each sample, averaged on the host.

use unisono_graph::{Type, Var};

/// A metric, computed sample by sample on the device. The trainer averages it on the host, in f64, in sample order, with the
/// samples' weights.
pub trait Metric: Send + Sync {
    /// Its name in histories and progress bars.
    fn name(&self) -> &str;

    /// Whether it can be computed from outputs and targets of these types, or why not.
    fn accepts(&self, _output: &Type, _target: &Type) -> Result<(), String> {
        Ok(())
    }

    /// The metric of each sample, `[B]`.
    fn per_sample(&self, output: &Var, target: &Var) -> Var;
}

/// The share of labels that are the index of the largest logit; the first one where several are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy;

impl Metric for Accuracy {
    fn name(&self) -> &str {
        "accuracy"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let fits = output.dims.split_last().is_some_and(|(_, rest)| rest == target.dims);
        fits.then_some(()).ok_or_else(|| format!("needs labels for logits {output}, got {target}"))
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let right = output.argmax().eq_mask(&target.to_f32());
        if right.dims().is_empty() { right } else { right.flatten().mean(&[-1]) }
    }
}
