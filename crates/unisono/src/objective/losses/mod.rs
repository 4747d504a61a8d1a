//! Losses, a file each: a number for each sample.

mod binary;
mod cross_entropy;
mod regression;

use unisono_data::Field;
use unisono_graph::{Type, Var};

pub use binary::BinaryCrossEntropyWithLogits;
pub use cross_entropy::CrossEntropy;
pub use regression::{Huber, MeanAbsoluteError, MeanSquaredError};

/// A loss, computed sample by sample. The trainer weighs, sums and divides by the weights' sum over the whole global batch.
///
/// ```
/// use unisono::{Loss, Type, Var};
///
/// /// The mean absolute error of a sample.
/// struct Absolute;
///
/// impl Loss for Absolute {
///     fn name(&self) -> &str {
///         "absolute"
///     }
///     fn target(&self, output: &Type) -> Result<Type, String> {
///         Ok(output.clone())
///     }
///     fn per_sample(&self, output: &Var, target: &Var) -> Var {
///         (output - target).abs().flatten().mean(&[-1])
///     }
/// }
/// ```
pub trait Loss: Send + Sync {
    /// The loss's name, for errors.
    fn name(&self) -> &str;

    /// The type of the target for outputs of this type, or why there is none.
    fn target(&self, output: &Type) -> Result<Type, String>;

    /// The loss of each sample, `[B]`.
    fn per_sample(&self, output: &Var, target: &Var) -> Var;

    /// What each sample weighs, `[B]`, beside the weight that the data give it; `None`: 1. Weights are summed over the whole
    /// global batch, whose loss is the weighted mean.
    fn weight(&self, _target: &Var) -> Option<Var> {
        None
    }

    /// Looks at the targets of a batch before a step: the index of a bad one in the batch, and what is wrong with it.
    fn check(&self, _output: &Type, _targets: &Field) -> Result<(), (usize, String)> {
        Ok(())
    }
}

impl Loss for Box<dyn Loss> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn target(&self, output: &Type) -> Result<Type, String> {
        (**self).target(output)
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        (**self).per_sample(output, target)
    }
    fn weight(&self, target: &Var) -> Option<Var> {
        (**self).weight(target)
    }
    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        (**self).check(output, targets)
    }
}

/// The mean over a sample's own elements: `[B, ...]` to `[B]`.
pub(crate) fn mean_of_sample(x: &Var) -> Var {
    if x.dims().is_empty() { x.clone() } else { x.flatten().mean(&[-1]) }
}

#[cfg(test)]
mod tests;
