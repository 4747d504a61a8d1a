//! The history of a run: what was measured, epoch by epoch.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::objective::metrics::{Metric, MetricKind, Table, reduction};
use crate::objective::number;

/// A loss, averaged over samples with their weights, and metrics, reduced over samples, in f64 and in sample
/// order. In JSON, values that are not finite are the strings `"NaN"`, `"inf"` and `"-inf"`.
///
/// ```
/// use unisono::Evaluation;
///
/// let mut evaluation = Evaluation::default();
/// evaluation.metrics.push(("accuracy".into(), 0.5));
/// assert_eq!(evaluation.metric("accuracy"), Some(0.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The mean loss. In training it includes the penalties. It is NaN where nothing was measured: without a
    /// batch, or where all weights are 0.
    #[serde(with = "number")]
    pub loss: f64,
    /// The name and the number of each metric, in the trainer's order. Metrics whose result is a table are
    /// not among them.
    #[serde(with = "number::named")]
    pub metrics: Vec<(String, f64)>,
    /// The name and the table of each metric whose result is a table, such as
    /// [`ConfusionMatrix`](crate::ConfusionMatrix), in the trainer's order. Histories and JSON do not have
    /// them; [`Trainer::evaluate`](crate::Trainer::evaluate) returns them, and observers see them at the end
    /// of an epoch.
    #[serde(skip)]
    pub tables: Vec<(String, Table)>,
    /// The number of samples.
    pub samples: u64,
}

impl Evaluation {
    /// Returns the number of the metric of this name, if there is one.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// Returns the table of the metric of this name, if there is one.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|(n, _)| n == name).map(|(_, table)| table)
    }
}

/// What was measured in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct Epoch {
    /// The number of the epoch, from 0.
    pub epoch: u32,
    /// The number of steps since the run's start.
    pub steps: u64,
    /// The training samples' losses and metrics, each as it was when the sample was trained on.
    pub train: Evaluation,
    /// The validation samples' losses and metrics after the epoch, if there are such samples.
    pub validation: Option<Evaluation>,
}

impl Epoch {
    /// Returns `loss` or the metric of this name, of the validation samples if there are any, else of the
    /// training samples.
    ///
    /// # Errors
    /// It is not measured; the error is the message, which begins with the name.
    pub(crate) fn watched(&self, name: &str) -> Result<f64, String> {
        let measured = self.validation.as_ref().unwrap_or(&self.train);
        if name == "loss" {
            return Ok(measured.loss);
        }
        measured.metric(name).ok_or_else(|| {
            let there = measured.metrics.iter().map(|(name, _)| &**name);
            let there: Vec<&str> = std::iter::once("loss").chain(there).collect();
            format!("{name:?}, but there is only {}", there.join(" "))
        })
    }

    /// Returns an epoch of zeros. It shows, before a run, which metrics will be measured.
    pub(crate) fn unmeasured(metrics: &[Arc<dyn Metric>]) -> Self {
        let metrics = names_of_numbers(metrics).into_iter().map(|name| (name, 0.0)).collect();
        Self { train: Evaluation { metrics, ..Evaluation::default() }, ..Self::default() }
    }

    /// Returns the epoch as histories have it, without tables.
    pub(crate) fn without_tables(mut self) -> Self {
        self.train.tables.clear();
        self.validation.iter_mut().for_each(|validation| validation.tables.clear());
        self
    }
}

/// Returns the names of the metrics whose results are numbers, in order.
pub(crate) fn names_of_numbers(metrics: &[Arc<dyn Metric>]) -> Vec<String> {
    let are_numbers = metrics.iter().filter(|metric| reduction(&***metric).kind() != MetricKind::Table);
    are_numbers.map(|metric| metric.name().to_owned()).collect()
}

/// All epochs of a run. After a resume it has those before it too.
pub type History = Vec<Epoch>;
