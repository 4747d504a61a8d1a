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

/// A metric: values of each sample, which are computed on the device and reduced on the host, in f64 and in
/// sample order. Without a [`Reduction`] it is one number for each sample, and the trainer takes the mean
/// with the samples' weights.
///
/// What counts in a metric is what its own settings say, such as an ignored label, each sample with the
/// weight that the data give it (the field `w`). What weighs the loss alone does not count: class weights,
/// and the labels that the loss ignores. A metric is NaN where nothing was measured: without a batch, or
/// where all labels are ignored or all weights are 0. A note says so, and what decides by the metric passes
/// it over ([`Saving::keep_best`](crate::Saving::keep_best), [`EarlyStopping`](crate::EarlyStopping),
/// [`Plateau`](crate::Plateau)).
///
/// In training, a metric is measured over the samples of the epoch, each by the model as it was when the
/// sample was trained on, as in Keras. In an evaluation it is measured over all samples of the loader. The
/// bits of the number depend on neither the number of replicas nor where batches end, and a run that is
/// resumed in the middle of an epoch goes on with the state that the reduction had.
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

    /// Checks the types of the model's output and of the targets, and the metric's own settings. Default: all
    /// are accepted.
    ///
    /// # Errors
    /// The metric cannot be computed from these types, or a setting makes no sense; the error is the message.
    fn accepts(&self, _output: &Type, _target: &Type) -> Result<(), String> {
        Ok(())
    }

    /// Traces the values of each sample: an f32 `[B]`, or with a [`Reduction`] an f32 `[B, ...]`. A number
    /// that depends on no sample, such as [`Tape::constant`](crate::Tape::constant), is taken as that of
    /// every sample.
    ///
    /// Errors: the value has axes and there is no reduction, is of another type, or is a sum over the samples
    /// of a batch, which would depend on the batch size. Building the trainer returns them.
    fn per_sample(&self, output: &Var, target: &Var) -> Var;

    /// Returns which values are better, for [`BestBy::Metric`](crate::BestBy::Metric). Default: `None`, which
    /// stands for a metric that does not say so, or that is no number.
    fn better(&self) -> Option<Better> {
        None
    }

    /// Returns how the samples' values become the metric's number. Default: `None`, which stands for the mean
    /// over samples with their weights.
    fn reduction(&self) -> Option<&dyn Reduction> {
        None
    }
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better, as of an error.
    Lower,
    /// More is better, as of an accuracy.
    Higher,
}

/// Returns how a metric's values are reduced.
pub(crate) fn reduction(metric: &dyn Metric) -> &dyn Reduction {
    metric.reduction().unwrap_or(&Mean)
}

#[cfg(test)]
mod tests;
