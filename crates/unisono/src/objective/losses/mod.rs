//! Losses: a number for each sample. A new loss is a file here, a `mod` line and a `pub use` line.

mod binary;
mod cross_entropy;
mod ctc;
mod dice;
mod divergence;
mod embeddings;
mod hinge;
mod in_batch;
mod regression;

use unisono_data::Field;
use unisono_graph::{DType, Type, Var};

pub use binary::{BinaryCrossEntropyWithLogits, BinaryFocal};
pub use cross_entropy::CrossEntropy;
pub use ctc::Ctc;
pub use dice::Dice;
pub use divergence::{KlDivergence, PoissonNll};
pub use embeddings::{Contrastive, CosineDistance, CosineEmbedding, TripletMargin};
pub use hinge::{Hinge, MultiMargin};
pub use in_batch::{BarlowTwins, InBatchSoftmax, NtXent, TripletHard};
pub use regression::{Huber, LogCosh, MeanAbsoluteError, MeanSquaredError};

pub(crate) use binary::{as_output, fits_binary};

/// A loss: a number for each sample. The trainer minimises its mean over the whole global batch, weighted
/// with the samples' weights.
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
    /// Returns the loss's name, for errors and exported models.
    fn name(&self) -> &str;

    /// Returns the type of the target for outputs of this type.
    ///
    /// # Errors
    /// The loss does not take such outputs, or a setting of its own makes no sense; the error is the message.
    fn target(&self, output: &Type) -> Result<Type, String>;

    /// Checks the types of the model's output and of the targets. Default: targets of the type that
    /// [`Loss::target`] returns are accepted, and no others.
    ///
    /// # Errors
    /// Those of [`Loss::target`], or the loss does not take such targets; the error is the message.
    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let expected = self.target(output)?;
        if &expected == target { Ok(()) } else { Err(other_target(output, &expected, target)) }
    }

    /// Traces the loss of each sample, an f32 `[B]`. Building the trainer refuses everything else.
    fn per_sample(&self, output: &Var, target: &Var) -> Var;

    /// Traces a weight for each sample, an f32 `[B]`. It multiplies the sample's weight in the data, and the
    /// loss of a global batch is the mean of its samples' losses with these weights. Building the trainer
    /// refuses a value of another type. Metrics do not use this weight. Default: `None`, which means 1.
    fn weight(&self, _target: &Var) -> Option<Var> {
        None
    }

    /// Traces the loss of each label before it is averaged, an f32 `[B, ...]` (PyTorch's
    /// `reduction="none"`), where labels may have weights of their own
    /// ([`Builder::sample_weights_of`](crate::Builder::sample_weights_of), and
    /// [`Builder::class_weights_of`](crate::Builder::class_weights_of) with several labels a sample).
    /// Default: `None`, which stands for a loss of a whole sample, such as [`Ctc`] and [`Dice`].
    fn per_label(&self, _output: &Var, _target: &Var) -> Option<Var> {
        None
    }

    /// Traces the weight of each label, an f32 in the shape of [`Loss::per_label`], where [`Loss::weight`] is
    /// its sum over a sample: 0 for a label that is ignored. Default: `None`, which stands for 1.
    fn label_weight(&self, _target: &Var) -> Option<Var> {
        None
    }

    /// Returns the activation that the loss applies to outputs, `"softmax"` or `"sigmoid"`. A note tells of
    /// an output to which the model applied it already. Default: `None`.
    fn activation(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether the loss takes outputs as probabilities. A note tells where the output is that of a
    /// dense layer, which may be any number. Default: false.
    fn takes_probabilities(&self) -> bool {
        false
    }

    /// Returns the label that the loss ignores, if there is one. A note tells of metrics of the same targets
    /// that count it. Default: `None`.
    fn ignored_label(&self) -> Option<i32> {
        None
    }

    /// Returns how many classes the labels of such outputs tell apart, for
    /// [`Builder::class_weights`](crate::Builder::class_weights). 0 if labels are quantities: then weights of
    /// classes are an error. Default: the length of the last axis, or 2 where that is 1 or there is no axis.
    fn classes(&self, output: &Type) -> usize {
        match *output.dims {
            [] | [1] => 2,
            [.., classes] => classes,
        }
    }

    /// Checks the targets of a batch before a step. Default: all targets are good.
    ///
    /// # Errors
    /// A target is bad; the error is the index of its sample in the batch, and what is wrong with it.
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
    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        (**self).accepts(output, target)
    }
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        (**self).per_sample(output, target)
    }
    fn weight(&self, target: &Var) -> Option<Var> {
        (**self).weight(target)
    }
    fn per_label(&self, output: &Var, target: &Var) -> Option<Var> {
        (**self).per_label(output, target)
    }
    fn label_weight(&self, target: &Var) -> Option<Var> {
        (**self).label_weight(target)
    }
    fn activation(&self) -> Option<&'static str> {
        (**self).activation()
    }
    fn takes_probabilities(&self) -> bool {
        (**self).takes_probabilities()
    }
    fn ignored_label(&self) -> Option<i32> {
        (**self).ignored_label()
    }
    fn classes(&self, output: &Type) -> usize {
        (**self).classes(output)
    }
    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        (**self).check(output, targets)
    }
}

/// Returns the message for targets that do not fit the output.
fn other_target(output: &Type, expected: &Type, target: &Type) -> String {
    format!(
        "the model gives {output}, which needs targets {expected}; got {target}{}",
        advice(expected, target)
    )
}

/// Returns what to do about targets that are not of the type that a loss needs.
fn advice(expected: &Type, target: &Type) -> String {
    if target.clone().of(expected.dtype) == *expected {
        return ": unisono::data::cast changes the type of a field".into();
    }
    let is_of_classes = [expected.dtype, target.dtype] == [DType::F32, DType::I32]
        && expected.dims.split_last().is_some_and(|(_, places)| *places == *target.dims);
    if is_of_classes {
        return ", as labels of classes are: CrossEntropy takes these (without probabilities()), and \
                unisono::data::one_hot makes rows of them"
            .into();
    }
    if expected.lead != target.lead || expected.dtype != target.dtype {
        return String::new();
    }
    if expected.count() == target.count() {
        let [field, output] = [&expected.dims, &target.dims];
        return format!(": give the field the shape {field:?}, or reshape the output to {output:?}");
    }
    if expected.dims.len() > target.dims.len() && expected.dims.starts_with(&target.dims) {
        return ": the output has axes that the targets lack. Flatten, a global pool, or `last` of a recurrent layer \
                takes them out before the last layer"
            .into();
    }
    String::new()
}

/// Checks targets that are probabilities of classes. A label of zeros counts nothing, as one that is masked.
///
/// # Errors
/// The first sample with a label whose numbers are negative or whose sum is neither 1 nor 0.
pub(crate) fn distributions(all: &[f32], classes: usize, per_sample: usize) -> Result<(), (usize, String)> {
    let fits = |label: &[f32]| {
        let sum: f32 = label.iter().sum();
        label.iter().all(|p| *p >= 0.0) && (sum == 0.0 || (sum - 1.0).abs() < 1e-2)
    };
    match all.chunks(classes.max(1)).position(|label| !fits(label)) {
        Some(at) => {
            let label = &all[at * classes..][..classes];
            let shown = if classes <= 8 { format!("{label:?}") } else { "its target".to_owned() };
            let ones = label.iter().filter(|p| **p == 1.0).count();
            let is_multi_hot = ones > 1 && label.iter().all(|p| *p == 0.0 || *p == 1.0);
            let rule = match is_multi_hot {
                true => "several ones are several labels, for which BinaryCrossEntropyWithLogits is",
                false => "none may be negative, and their sum must be 1",
            };
            Err((at / per_sample, format!("{shown} is no distribution over {classes} classes: {rule}")))
        }
        None => Ok(()),
    }
}

/// Traces the mean over each sample's elements: `[B, ...]` to `[B]`.
pub(crate) fn mean_of_sample(x: &Var) -> Var {
    if x.dims().is_empty() { x.clone() } else { x.flatten().mean(&[-1]) }
}

/// Implements the two methods of a loss that is the mean of what `Self::each` gives for each label.
macro_rules! mean_of_labels {
    () => {
        fn per_sample(&self, output: &Var, target: &Var) -> Var {
            mean_of_sample(&self.each(output, target))
        }

        fn per_label(&self, output: &Var, target: &Var) -> Option<Var> {
            Some(self.each(output, target))
        }
    };
}
use mean_of_labels;

/// A loss of each label, as [`mean_of_labels`], whose labels are quantities and not classes.
macro_rules! mean_of_quantities {
    () => {
        $crate::objective::losses::mean_of_labels!();

        fn classes(&self, _: &Type) -> usize {
            0
        }
    };
}
use mean_of_quantities;

#[cfg(test)]
mod tests;
