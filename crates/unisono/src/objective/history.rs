//! What a run measured, epoch by epoch.

use serde::{Deserialize, Serialize};

use crate::Metric;
use crate::objective::number;

/// A loss and metrics, averaged over samples with their weights: in f64, in sample order. In JSON, those that are no finite
/// numbers are `"NaN"`, `"inf"` and `"-inf"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The mean loss, penalties included while training.
    #[serde(with = "number")]
    pub loss: f64,
    /// The mean of each metric, in the trainer's order, by name.
    #[serde(with = "number::named")]
    pub metrics: Vec<(String, f64)>,
    /// Samples.
    pub samples: u64,
}

impl Evaluation {
    /// A metric by name.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

/// What an epoch measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Its number, from 0.
    pub epoch: u32,
    /// Steps since the run's start.
    pub steps: u64,
    /// Over the training samples, as they were trained on.
    pub train: Evaluation,
    /// Over the samples held out, after the epoch.
    pub validation: Option<Evaluation>,
}

impl Epoch {
    /// Zeros, to learn before a run whether what is looked for is measured.
    pub(crate) fn unmeasured(metrics: &[Box<dyn Metric>]) -> Self {
        let metrics = metrics.iter().map(|metric| (metric.name().to_owned(), 0.0)).collect();
        let train = Evaluation { loss: 0.0, metrics, samples: 0 };
        Self { epoch: 0, steps: 0, validation: None, train }
    }
}

/// All epochs of a run; a resumed run's history is the whole run's.
pub type History = Vec<Epoch>;

/// Sums on the way to an [`Evaluation`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Adds a batch: losses, metrics and weights of its samples, in order.
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

    /// The means so far.
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
