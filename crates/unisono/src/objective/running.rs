//! The running sums of an epoch or an evaluation, from which an [`Evaluation`] is made.

use serde::{Deserialize, Serialize};

use crate::objective::metrics::{Metric, MetricKind, MetricState, MetricValue, SampleValues, reduction};
use crate::objective::{Evaluation, number};

/// What a batch measured, sample by sample.
pub(crate) struct Measured<'a> {
    /// Each sample's loss.
    pub losses: &'a [f32],
    /// For each metric the values of all samples, `[samples, ...]`.
    pub metrics: Vec<&'a [f32]>,
    /// Each sample's weight as the data give it. `None` stands for 1.
    pub given: Option<&'a [f32]>,
    /// Each sample's weight in the loss. `None` stands for 1.
    pub weights: Option<&'a [f32]>,
    /// The step's penalty.
    pub penalty: f64,
}

/// The sums from which an [`Evaluation`] is made, with the state of each metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Running {
    #[serde(with = "number")]
    loss: f64,
    /// The state of each metric, in the trainer's order, or nothing before the first sample.
    metrics: Vec<MetricState>,
    #[serde(with = "number")]
    weight: f64,
    samples: u64,
    #[serde(with = "number")]
    penalty: f64,
    steps: u64,
}

impl Running {
    /// Adds a batch, sample by sample in order.
    pub fn add(&mut self, metrics: &[Box<dyn Metric>], batch: &Measured<'_>) {
        self.add_of(metrics, batch, |_| true);
    }

    /// Returns what a step measured alone. Metrics that are computed at the end only are not in it.
    pub fn of_step(metrics: &[Box<dyn Metric>], batch: &Measured<'_>) -> Evaluation {
        let mut step = Self::default();
        step.add_of(metrics, batch, |kind| kind == MetricKind::EachStep);
        step.so_far(metrics)
    }

    /// Adds a batch for the metrics of some kinds.
    fn add_of(
        &mut self,
        metrics: &[Box<dyn Metric>],
        batch: &Measured<'_>,
        counts: impl Fn(MetricKind) -> bool,
    ) {
        let samples = batch.losses.len();
        let width = |at: usize| batch.metrics[at].len() / samples.max(1);
        for (at, metric) in metrics.iter().enumerate().skip(self.metrics.len()) {
            self.metrics.push(reduction(&**metric).start(width(at)));
        }
        for (i, &loss) in batch.losses.iter().enumerate() {
            let weight = batch.weights.map_or(1.0, |w| f64::from(w[i]));
            self.loss += f64::from(loss) * weight;
            self.weight += weight;
        }
        for (at, (metric, state)) in metrics.iter().zip(&mut self.metrics).enumerate() {
            let reduction = reduction(&**metric);
            if width(at) == 0 || !counts(reduction.kind()) {
                continue;
            }
            for (i, values) in batch.metrics[at].chunks_exact(width(at)).enumerate() {
                let weight = |weights: Option<&[f32]>| weights.map_or(1.0, |w| f64::from(w[i]));
                let sample = SampleValues::new(values);
                let sample = sample.weighted(weight(batch.given), weight(batch.weights));
                reduction.update(state, &sample);
            }
        }
        self.samples += samples as u64;
        self.penalty += batch.penalty;
        self.steps += 1;
    }

    /// Returns the numbers of samples and of steps so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.samples, self.steps)
    }

    /// Returns the loss so far and the metrics that every step has.
    pub fn so_far(&self, metrics: &[Box<dyn Metric>]) -> Evaluation {
        self.evaluation(metrics, |kind| kind == MetricKind::EachStep)
    }

    /// Returns the loss and all metrics.
    pub fn finish(&self, metrics: &[Box<dyn Metric>]) -> Evaluation {
        self.evaluation(metrics, |_| true)
    }

    fn evaluation(&self, metrics: &[Box<dyn Metric>], counts: impl Fn(MetricKind) -> bool) -> Evaluation {
        let mean = if self.weight == 0.0 { 0.0 } else { self.loss / self.weight };
        let penalty = if self.steps == 0 { 0.0 } else { self.penalty / self.steps as f64 };
        let mut evaluation =
            Evaluation { loss: mean + penalty, samples: self.samples, ..Evaluation::default() };
        for (metric, state) in metrics.iter().zip(&self.metrics) {
            let reduction = reduction(&**metric);
            if !counts(reduction.kind()) {
                continue;
            }
            let name = metric.name().to_owned();
            match reduction.finish(state) {
                MetricValue::Number(number) => evaluation.metrics.push((name, number)),
                MetricValue::Table(table) => evaluation.tables.push((name, table)),
            }
        }
        evaluation
    }

    /// Says which metric's saved state is not one that the metric starts with. `widths` are the numbers of
    /// values that the metrics have of a sample.
    pub fn problem(&self, metrics: &[Box<dyn Metric>], widths: &[usize]) -> Option<String> {
        if self.metrics.is_empty() && self.samples == 0 {
            return None;
        }
        if self.metrics.len() != metrics.len() {
            return Some(format!(
                "the run has the states of {} metrics, not {}",
                self.metrics.len(),
                metrics.len()
            ));
        }
        let states = metrics.iter().zip(&self.metrics).zip(widths);
        states.into_iter().find_map(|((metric, state), &width)| {
            let (found, expected) = (state.sums.len(), reduction(&**metric).start(width).sums.len());
            let problem =
                || format!("the metric {:?} of the run has {found} sums, not {expected}", metric.name());
            (found != expected).then(problem)
        })
    }
}
