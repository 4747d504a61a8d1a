//! Losses: a number for each sample.

use unisono_data::{Field, Values};
use unisono_graph::{DType, Type, Var};

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

    /// Looks at the targets of a batch before a step: the index of a bad one in the batch, and what is wrong with it.
    fn check(&self, _output: &Type, _targets: &Field) -> Result<(), (usize, String)> {
        Ok(())
    }
}

/// Cross-entropy of the softmax of logits `[B, ..., classes]` with labels `[B, ...]` in 0..classes (PyTorch's
/// `CrossEntropyLoss`, Keras's `SparseCategoricalCrossentropy(from_logits=True)`). With several labels a sample, their mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy;

impl Loss for CrossEntropy {
    fn name(&self) -> &str {
        "cross-entropy"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        match output.dims.split_last() {
            Some((_, rest)) => Ok(output.with_dims(rest).of(DType::I32)),
            None => Err(format!("logits need an axis of classes, the model gives {output}")),
        }
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let loss = -output.log_softmax().take(target);
        if loss.dims().is_empty() { loss } else { loss.flatten().mean(&[-1]) }
    }

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        let classes = output.dims.last().copied().unwrap_or(0);
        let Values::I32(labels) = &targets.values else { return Ok(()) };
        let per_sample = (output.count() / classes.max(1)).max(1);
        match labels.iter().position(|&l| l < 0 || l as usize >= classes) {
            Some(at) => Err((at / per_sample, format!("label {} is not in 0..{classes}", labels[at]))),
            None => Ok(()),
        }
    }
}

/// The mean of the squared differences over a sample's elements (PyTorch's `MSELoss`, Keras's `MeanSquaredError`).
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

impl Loss for MeanSquaredError {
    fn name(&self) -> &str {
        "mean squared error"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let difference = output - target;
        (&difference * &difference).flatten().mean(&[-1])
    }
}
