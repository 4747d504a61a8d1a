//! Precision, recall, F-beta and intersection over union: quotients of counts of labels.

use unisono_graph::{Type, Var};

use super::averages::{Average, Count, Counted, averages};
use super::labels::Task;
use super::{Better, Metric, MetricState, MetricValue, Reduction, SampleValues};

/// Precision, hits / predicted: of all labels that are predicted to be of a class, the share that really are
/// of that class (scikit-learn's `precision_score`, Keras's and torchmetrics' `Precision`). It is 0 for a
/// class that has labels and is never predicted.
///
/// Shapes: logits `[B, ..., classes]` with labels `[B, ...]` or probabilities `[B, ..., classes]`, of which
/// the largest is the label; logits and targets of two classes as [`PrecisionScore::binary`] says. Each label
/// counts with the weight that the data give its sample. Errors: outputs with another number of classes, no
/// class, a threshold that is not between 0 and 1.
///
/// ```
/// use unisono::{Dense, PrecisionScore, Trainer};
///
/// let multi = Trainer::builder(Dense::new(10)).metric(PrecisionScore::macro_average(10));
/// let binary = Trainer::builder(Dense::new(1)).metric(PrecisionScore::binary().threshold(0.8));
/// ```
#[derive(Clone, Debug)]
pub struct PrecisionScore {
    counted: Counted,
}

/// Recall: the share of the labels of a class that are predicted to be, hits / actual (scikit-learn's
/// `recall_score`, Keras's and torchmetrics' `Recall`). For one class without labels it is NaN; a mean over
/// classes counts it as 0 where the class is predicted, as scikit-learn does.
///
/// Shapes and errors are those of [`PrecisionScore`].
#[derive(Clone, Debug)]
pub struct RecallScore {
    counted: Counted,
}

/// F-beta: the weighted harmonic mean of precision and recall, (1 + beta^2) hits / (beta^2 actual +
/// predicted) (scikit-learn's `fbeta_score`, Keras's and torchmetrics' `FBetaScore`). Default: a beta of 1,
/// which is [`F1`].
///
/// Shapes and errors are those of [`PrecisionScore`]; beta is not a finite number above 0.
#[doc(alias = "FBetaScore")]
#[derive(Clone, Debug)]
pub struct FBeta {
    counted: Counted,
    beta: f64,
}

/// F1: the harmonic mean of precision and recall (scikit-learn's `f1_score`, Keras's and torchmetrics'
/// `F1Score`): an [`FBeta`] with a beta of 1.
pub type F1 = FBeta;

/// Intersection over union, the Jaccard index: hits / (predicted + actual - hits) of a class (scikit-learn's
/// `jaccard_score`, Keras's `MeanIoU` and `OneHotMeanIoU` for the mean over classes, torchmetrics'
/// `JaccardIndex`).
///
/// Shapes and errors are those of [`PrecisionScore`]. For segmentation, the classes are the last axis of the
/// model's output.
#[doc(alias("JaccardIndex", "MeanIoU"))]
#[derive(Clone, Debug)]
pub struct Iou {
    counted: Counted,
}

averages!(PrecisionScore, "precision");
averages!(RecallScore, "recall");
averages!(FBeta, "f1");
averages!(Iou, "iou");

impl FBeta {
    /// Sets how many times as much recall counts as precision, above 0. The name becomes that of this beta,
    /// such as `f2 (macro)`, unless one was set. Default: 1.
    pub fn beta(mut self, beta: f64) -> Self {
        let rest = self.counted.name.strip_prefix(&format!("f{}", self.beta));
        if let Some(rest) = rest.filter(|_| !self.counted.is_named) {
            self.counted.name = format!("f{beta}{rest}");
        }
        self.beta = beta;
        self
    }
}

/// What tells one metric of counts from another.
trait Quotient {
    /// Creates the metric with the default of its own settings.
    fn of(name: String, task: Task, average: Average) -> Self;

    /// Returns numerator and denominator for the counts of a class.
    fn quotient(&self, count: Count) -> (f64, f64);

    /// Checks the metric's own settings. Default: there are none.
    ///
    /// # Errors
    /// One makes no sense.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the metric's own settings as text, for the run's identity. Default: none.
    fn own_settings(&self) -> String {
        String::new()
    }
}

impl Quotient for PrecisionScore {
    fn of(name: String, task: Task, average: Average) -> Self {
        Self { counted: Counted::new(name, task, average) }
    }

    fn quotient(&self, Count { hits, predicted, .. }: Count) -> (f64, f64) {
        (hits, predicted)
    }
}

impl Quotient for RecallScore {
    fn of(name: String, task: Task, average: Average) -> Self {
        Self { counted: Counted::new(name, task, average) }
    }

    fn quotient(&self, Count { hits, actual, .. }: Count) -> (f64, f64) {
        (hits, actual)
    }
}

impl Quotient for FBeta {
    fn of(name: String, task: Task, average: Average) -> Self {
        Self { counted: Counted::new(name, task, average), beta: 1.0 }
    }

    fn quotient(&self, Count { hits, predicted, actual }: Count) -> (f64, f64) {
        let square = self.beta * self.beta;
        ((1.0 + square) * hits, square * actual + predicted)
    }

    fn check(&self) -> Result<(), String> {
        let fits = self.beta > 0.0 && self.beta.is_finite();
        fits.then_some(()).ok_or_else(|| format!("beta {} is not a finite number above 0", self.beta))
    }

    fn own_settings(&self) -> String {
        format!(", beta {:?}", self.beta)
    }
}

impl Quotient for Iou {
    fn of(name: String, task: Task, average: Average) -> Self {
        Self { counted: Counted::new(name, task, average) }
    }

    fn quotient(&self, Count { hits, predicted, actual }: Count) -> (f64, f64) {
        (hits, predicted + actual - hits)
    }
}
