//! The history of a run: what was measured, epoch by epoch.

use serde::{Deserialize, Serialize};

use crate::objective::{Metric, number};

/// A loss and metrics, averaged over samples with their weights, in f64 and in sample order. In JSON, values
/// that are not finite are the strings `"NaN"`, `"inf"` and `"-inf"`.
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
    /// The mean loss. In training it includes the penalties.
    #[serde(with = "number")]
    pub loss: f64,
    /// The name and the mean of each metric, in the trainer's order.
    #[serde(with = "number::named")]
    pub metrics: Vec<(String, f64)>,
    /// The number of samples.
    pub samples: u64,
}

impl Evaluation {
    /// Returns the mean of the metric of this name, if there is one.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
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
    /// Returns an epoch of zeros. It shows, before a run, which metrics will be measured.
    pub(crate) fn unmeasured(metrics: &[Box<dyn Metric>]) -> Self {
        let metrics = metrics.iter().map(|metric| (metric.name().to_owned(), 0.0)).collect();
        let train = Evaluation { loss: 0.0, metrics, samples: 0 };
        Self { epoch: 0, steps: 0, validation: None, train }
    }
}

/// All epochs of a run. After a resume it has those before it too.
pub type History = Vec<Epoch>;

/// The sums from which an [`Evaluation`] is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Running {
    #[serde(with = "number")]
    loss: f64,
    #[serde(with = "number::list")]
    metrics: Vec<f64>,
    #[serde(with = "number")]
    weight: f64,
    samples: u64,
    #[serde(with = "number")]
    penalty: f64,
    steps: u64,
}

impl Running {
    /// Adds a batch: the losses, metrics and weights of its samples, in order, and the step's penalty.
    /// Without weights each sample weighs 1.
    pub fn add(&mut self, losses: &[f32], metrics: &[Vec<f32>], weights: Option<&[f32]>, penalty: f64) {
        self.metrics.resize(metrics.len(), 0.0);
        for (i, &loss) in losses.iter().enumerate() {
            let weight = weights.map_or(1.0, |w| f64::from(w[i]));
            self.loss += f64::from(loss) * weight;
            self.weight += weight;
            self.metrics
                .iter_mut()
                .zip(metrics)
                .for_each(|(sum, values)| *sum += f64::from(values[i]) * weight);
        }
        self.samples += losses.len() as u64;
        self.penalty += penalty;
        self.steps += 1;
    }

    /// Returns the numbers of samples and of steps so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.samples, self.steps)
    }

    /// Returns the means so far. `names` are those of the metrics.
    pub fn mean(&self, names: &[String]) -> Evaluation {
        let mean = |sum: f64| if self.weight == 0.0 { 0.0 } else { sum / self.weight };
        let penalty = if self.steps == 0 { 0.0 } else { self.penalty / self.steps as f64 };
        Evaluation {
            loss: mean(self.loss) + penalty,
            metrics: names.iter().cloned().zip(self.metrics.iter().map(|&m| mean(m))).collect(),
            samples: self.samples,
        }
    }
}
