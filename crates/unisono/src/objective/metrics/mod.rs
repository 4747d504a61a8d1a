//! Metrics: values of each sample, which the host reduces to one number. A new metric is a file here, a `mod`
//! line and a `pub use` line.

mod accuracy;
mod auc;
mod averages;
mod confusion;
mod counts;
mod labels;
mod likelihood;
mod reduction;
mod regression;
mod similarity;
mod top_k;

use std::sync::Arc;

use unisono_graph::{Type, Var};

pub use accuracy::{Accuracy, BinaryAccuracy};
pub use auc::Auc;
pub use confusion::{ConfusionMatrix, Matthews};
pub use counts::{F1, FBeta, Iou, PrecisionScore, RecallScore};
pub use likelihood::Perplexity;
pub(crate) use reduction::{Mean, MeanInLoss, ratio};
pub use reduction::{MetricKind, MetricState, MetricValue, Reduction, SampleValues, Table};
pub use regression::{R2, RootMeanSquaredError};
pub use similarity::CosineSimilarity;
pub use top_k::TopKAccuracy;

/// A metric (Keras's `Metric`, torchmetrics's `Metric`). The device computes values for each sample, and the
/// host reduces them in f64, in sample order. Without a [`Reduction`], there is one number for each sample,
/// and the metric is their mean, weighted by the samples' weights.
///
/// A metric follows its own settings, such as an ignored label, and the weights in the data (the field `w`).
/// It does not follow settings of the loss: class weights, and labels that the loss ignores. A metric is NaN
/// if nothing was measured: without a batch, or if all labels are ignored or all weights are 0. A note says
/// so, and [`Saving::keep_best`](crate::Saving::keep_best), [`EarlyStopping`](crate::EarlyStopping) and
/// [`Plateau`](crate::Plateau) ignore that epoch.
///
/// In training, a metric covers the samples of the epoch, each with the model as it was when the sample was
/// trained on, as in Keras. In an evaluation, it covers all samples of the loader. Its bits depend neither on
/// the number of replicas nor on the ends of batches. A run that is resumed in the middle of an epoch
/// continues with the state of the reduction.
///
/// ```
/// use unisono::{Metric, Var};
///
/// /// The largest absolute error of a sample, of which the trainer takes the mean.
/// struct WorstError;
///
/// impl Metric for WorstError {
///     fn name(&self) -> &str {
///         "worst error"
///     }
///     fn per_sample(&self, output: &Var, target: &Var) -> Var {
///         (output - target).abs().flatten().max(&[-1])
///     }
/// }
/// ```
pub trait Metric: Send + Sync {
    /// Returns the metric's name in histories and progress bars.
    fn name(&self) -> &str;

    /// Checks the types of the model's output and of the targets, and the metric's settings. Default: accepts
    /// all.
    ///
    /// # Errors
    /// The metric cannot be computed from these types, or a setting makes no sense. The error is the message.
    fn accepts(&self, _output: &Type, _target: &Type) -> Result<(), String> {
        Ok(())
    }

    /// Traces the values of each sample: an f32 `[B]`, or with a [`Reduction`] an f32 `[B, ...]`. A number
    /// that depends on no sample, such as [`Tape::constant`](crate::Tape::constant), counts as the value of
    /// every sample.
    ///
    /// Errors, which building the trainer returns: the value has axes but there is no reduction, it has
    /// another type, or it is a sum over the samples of a batch, which would depend on the batch size.
    fn per_sample(&self, output: &Var, target: &Var) -> Var;

    /// Returns whether higher or lower values are better, for [`BestBy::Metric`](crate::BestBy::Metric).
    /// Default: `None`, for a metric that does not say so or that is not a number.
    fn better(&self) -> Option<Better> {
        None
    }

    /// Returns whether a label counts in the metric. A note tells of one that counts here and that the loss
    /// of the same targets ignores ([`Loss::ignored_label`](crate::Loss::ignored_label)). Default: false, for
    /// a metric that knows no labels or that does not say so.
    fn counts_label(&self, _label: i32) -> bool {
        false
    }

    /// Returns whether the largest value of the last axis counts alone, as that of classes that exclude each
    /// other. A note tells where the loss is of answers that may all be true. Default: false.
    fn takes_largest(&self) -> bool {
        false
    }

    /// Returns whether the metric reads outputs as logits, so that probabilities give another value. A note
    /// tells where the output is a softmax or sigmoid. Default: false.
    fn takes_logits(&self) -> bool {
        false
    }

    /// Returns whether the metric reads outputs as probabilities. A note tells where the output is that of a
    /// dense layer, which may be any number. Default: false.
    fn takes_probabilities(&self) -> bool {
        false
    }

    /// Returns the reduction of the samples' values. Default: `None`, the weighted mean over samples.
    fn reduction(&self) -> Option<&dyn Reduction> {
        None
    }
}

/// Whether higher or lower values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better, as of an error.
    Lower,
    /// More is better, as of an accuracy.
    Higher,
}

/// Returns which values of a metric are better, by its name. Those of `"loss"` and of anything unknown are
/// those of a loss.
pub(crate) fn better(metrics: &[Arc<dyn Metric>], name: &str) -> Option<Better> {
    metrics.iter().find(|metric| metric.name() == name).map_or(Some(Better::Lower), |metric| metric.better())
}

/// Returns a note where the values of a metric that `who` takes to be better are the worse ones.
pub(crate) fn wrong_way(
    metrics: &[Arc<dyn Metric>],
    who: &str,
    (name, asked): (&str, Better),
) -> Option<String> {
    let own = better(metrics, name).filter(|own| *own != asked)?;
    let (asked, other) = if own == Better::Lower { ("highest", "lower") } else { ("lowest", "higher") };
    Some(format!("warning: {who} takes the {asked} {name} to be the best, and {other} values are better"))
}

/// Returns how a metric's values are reduced.
pub(crate) fn reduction(metric: &dyn Metric) -> &dyn Reduction {
    metric.reduction().unwrap_or(&Mean)
}

#[cfg(test)]
mod tests;
