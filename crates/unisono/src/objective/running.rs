//! The running sums of an epoch or an evaluation, from which an [`Evaluation`] is made.

use std::cell::RefCell;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unisono_checkpoint::{Tensor, TensorDType, Tensors};

use crate::error::caught;
use crate::objective::metrics::{
    Metric, MetricKind, MetricState, MetricValue, Reduction, SampleValues, ratio, reduction,
};
use crate::objective::tensors::take_of;
use crate::objective::{Evaluation, number};

/// What a batch measured, sample by sample.
pub(crate) struct Measured<'a> {
    /// Each sample's loss.
    pub losses: &'a [f32],
    /// What each metric has.
    pub metrics: Vec<OfMetric<'a>>,
    /// Each sample's weight in the loss. `None` stands for 1.
    pub weights: Option<&'a [f32]>,
    /// What each loss counts, if there are several with different weights: the first metrics are these losses
    /// then, and the loss is the sum of their means. Else it is empty.
    pub several: Vec<f64>,
    /// The step's penalty.
    pub penalty: f64,
}

impl Measured<'_> {
    /// Returns the first sample whose loss counts and is NaN or infinite, and that loss.
    pub fn not_finite(&self) -> Option<(usize, f32)> {
        let first = |values: &[f32], weights: Option<&[f32]>| {
            let counts = |row: usize| weights.is_none_or(|weights| weights[row] != 0.0);
            let row = (0..values.len()).find(|&row| !values[row].is_finite() && counts(row))?;
            Some((row, values[row]))
        };
        let mut several = self.metrics.iter().take(self.several.len());
        let several = several.find_map(|own| first(own.values, own.weights));
        several.or_else(|| first(self.losses, self.weights))
    }
}

/// What a batch measured for a metric.
pub(crate) struct OfMetric<'a> {
    /// The values of all samples, `[samples, ...]`.
    pub values: &'a [f32],
    /// Each sample's weight as the data give it. `None` stands for 1.
    pub given: Option<&'a [f32]>,
    /// Each sample's weight in the loss of the same output. `None` stands for 1.
    pub weights: Option<&'a [f32]>,
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
    /// Of each of several losses with different weights: what it counts, the sum of the losses of samples,
    /// and that of the weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    several: Vec<MetricState>,
    samples: u64,
    #[serde(with = "number")]
    penalty: f64,
    steps: u64,
    /// The names of the tensors that hold the rest of the states, in a checkpoint. Else it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<String>,
    /// The first metric that panicked, and the panic's message. Its numbers are NaN.
    #[serde(skip)]
    panicked: RefCell<Option<(String, String)>>,
}

/// The most numbers of a list that `trainer.json` has. Longer lists are tensors.
const LONGEST_LIST: usize = 4096;

impl Running {
    /// Adds a batch, sample by sample in order.
    pub fn add(&mut self, metrics: &[Arc<dyn Metric>], batch: &Measured<'_>) {
        self.add_of(metrics, batch, |_| true);
    }

    /// Returns what a step measured alone. Metrics that are computed at the end only are not in it.
    pub fn of_step(metrics: &[Arc<dyn Metric>], batch: &Measured<'_>) -> Evaluation {
        let mut step = Self::default();
        step.add_of(metrics, batch, |kind| kind == MetricKind::EachStep);
        step.so_far(metrics)
    }

    /// Adds a batch for the metrics of some kinds.
    fn add_of(
        &mut self,
        metrics: &[Arc<dyn Metric>],
        batch: &Measured<'_>,
        counts: impl Fn(MetricKind) -> bool,
    ) {
        let samples = batch.losses.len();
        let width = |at: usize| batch.metrics[at].values.len() / samples.max(1);
        for (at, metric) in metrics.iter().enumerate().skip(self.metrics.len()) {
            let start = self.guarded(&**metric, |reduction| reduction.start(width(at)));
            self.metrics.push(start.unwrap_or_default());
        }
        let (loss, weight) = match batch.several.is_empty() {
            true => weighted(batch.losses, batch.weights, (self.loss, self.weight)),
            false => (self.loss, self.weight + self.add_several(batch)),
        };
        (self.loss, self.weight) = (loss, weight);
        let mut states = std::mem::take(&mut self.metrics);
        for (at, (metric, state)) in metrics.iter().zip(&mut states).enumerate() {
            if width(at) == 0 || !counts(reduction(&**metric).kind()) {
                continue;
            }
            // It could not start before, so that samples are missing in it.
            if self.samples > 0
                && *state == MetricState::default()
                && let Some(start) = self.guarded(&**metric, |reduction| reduction.start(width(at)))
            {
                *state = start;
                state.sums.fill(f64::NAN);
            }
            let own = &batch.metrics[at];
            let update = |reduction: &dyn Reduction| {
                for (i, values) in own.values.chunks_exact(width(at)).enumerate() {
                    let weight = |weights: Option<&[f32]>| weights.map_or(1.0, |w| f64::from(w[i]));
                    let sample = SampleValues::new(values).weighted(weight(own.given), weight(own.weights));
                    reduction.update(state, &sample);
                }
            };
            if self.guarded(&**metric, update).is_none() {
                state.sums.fill(f64::NAN);
            }
        }
        self.metrics = states;
        self.samples += samples as u64;
        self.penalty += batch.penalty;
        self.steps += 1;
    }

    /// Returns the sum of the weights of all samples so far.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Calls a metric's reduction. Returns nothing if it panics, which is kept.
    fn guarded<T>(&self, metric: &dyn Metric, call: impl FnOnce(&dyn Reduction) -> T) -> Option<T> {
        caught(|| call(reduction(metric))).map_err(|text| self.panicked_at(metric, text)).ok()
    }

    fn panicked_at(&self, metric: &dyn Metric, message: String) {
        let what = format!("the reduction of the metric {:?}", metric.name());
        self.panicked.borrow_mut().get_or_insert((what, message));
    }

    /// Returns the first metric that panicked, and the panic's message, once.
    pub fn take_panic(&self) -> Option<(String, String)> {
        self.panicked.borrow_mut().take()
    }

    /// Adds the losses of a batch that have different weights. Returns the sum of all these weights.
    fn add_several(&mut self, batch: &Measured<'_>) -> f64 {
        let known = self.several.len();
        for &counts in batch.several.iter().skip(known) {
            self.several.push(MetricState { sums: vec![counts, 0.0, 0.0], ..MetricState::default() });
        }
        let mut all = 0.0;
        for (state, own) in self.several.iter_mut().zip(&batch.metrics) {
            let (loss, weight) = weighted(own.values, own.weights, (state.sum(1), state.sum(2)));
            all += weight - state.sum(2);
            state.sums = vec![state.sum(0), loss, weight];
        }
        all
    }

    /// Returns the mean loss without penalties: the weighted mean over samples, or the sum of those of
    /// several losses, without losses for which nothing was measured.
    fn mean_loss(&self) -> f64 {
        let measured = self.several.iter().filter(|state| state.sum(2) != 0.0);
        let means = measured.map(|state| state.sum(0) * ratio(state.sum(1), state.sum(2)));
        match self.several.is_empty() {
            true => ratio(self.loss, self.weight),
            false => means.reduce(|a, b| a + b).unwrap_or(f64::NAN),
        }
    }

    /// Returns the numbers of samples and of steps so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.samples, self.steps)
    }

    /// Returns the loss so far and the metrics that every step has.
    pub fn so_far(&self, metrics: &[Arc<dyn Metric>]) -> Evaluation {
        self.evaluation(metrics, |kind| kind == MetricKind::EachStep)
    }

    /// Returns the loss and all metrics.
    pub fn finish(&self, metrics: &[Arc<dyn Metric>]) -> Evaluation {
        self.evaluation(metrics, |_| true)
    }

    fn evaluation(&self, metrics: &[Arc<dyn Metric>], counts: impl Fn(MetricKind) -> bool) -> Evaluation {
        let mean = self.mean_loss();
        let penalty = if self.steps == 0 { 0.0 } else { self.penalty / self.steps as f64 };
        let mut evaluation =
            Evaluation { loss: mean + penalty, samples: self.samples, ..Evaluation::default() };
        for (at, metric) in metrics.iter().enumerate() {
            let reduction = reduction(&**metric);
            if !counts(reduction.kind()) {
                continue;
            }
            let name = metric.name().to_owned();
            let state = self.metrics.get(at);
            match state.and_then(|state| self.guarded(&**metric, |reduction| reduction.finish(state))) {
                Some(MetricValue::Number(number)) => evaluation.metrics.push((name, number)),
                Some(MetricValue::Table(table)) => evaluation.tables.push((name, table)),
                // There was no batch, or the metric panicked.
                None if reduction.kind() != MetricKind::Table => evaluation.metrics.push((name, f64::NAN)),
                None => {}
            }
        }
        evaluation
    }

    /// Returns the names of what is NaN in an evaluation made of these sums because nothing was measured: no
    /// value of a sample is NaN.
    pub fn unmeasured(&self, metrics: &[Arc<dyn Metric>], evaluation: &Evaluation) -> Vec<String> {
        let has_nan = |state: &MetricState| {
            state.sums.iter().any(|sum| sum.is_nan()) || state.kept.iter().any(|kept| kept.is_nan())
        };
        let mut names = Vec::new();
        if self.weight == 0.0 {
            names.push("loss".to_owned());
        }
        for (at, metric) in metrics.iter().enumerate() {
            let is_nan = evaluation.metric(metric.name()).is_some_and(f64::is_nan);
            if is_nan && !self.metrics.get(at).is_some_and(has_nan) {
                names.push(metric.name().to_owned());
            }
        }
        names
    }

    /// Returns the sums without the long lists of states, which are tensors in a checkpoint, with the names
    /// of these.
    pub fn without_tensors(&self) -> Self {
        let short = |state: &MetricState| {
            let mut short = MetricState::default();
            if state.sums.len() <= LONGEST_LIST {
                short.sums.clone_from(&state.sums);
            }
            if state.kept.len() <= LONGEST_LIST {
                short.kept.clone_from(&state.kept);
            }
            short
        };
        let names = |(at, state): (usize, &MetricState)| {
            let lists = [("sums", state.sums.len()), ("kept", state.kept.len())];
            lists.into_iter().filter(|list| list.1 > LONGEST_LIST).map(move |list| tensor_name(at, list.0))
        };
        Self {
            metrics: self.metrics.iter().map(short).collect(),
            tensors: self.metrics.iter().enumerate().flat_map(names).collect(),
            several: self.several.clone(),
            panicked: RefCell::default(),
            ..*self
        }
    }

    /// Returns the long lists of states as tensors.
    ///
    /// # Errors
    /// There are none.
    pub fn tensors(&self) -> unisono_checkpoint::Result<Tensors> {
        let mut tensors = Tensors::new();
        for (at, MetricState { sums, kept }) in self.metrics.iter().enumerate() {
            if sums.len() > LONGEST_LIST {
                let bytes = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                let tensor = Tensor::new(TensorDType::F64, vec![sums.len()], bytes)?;
                tensors.insert(tensor_name(at, "sums"), tensor);
            }
            if kept.len() > LONGEST_LIST {
                tensors.insert(tensor_name(at, "kept"), Tensor::f32(&[kept.len()], kept)?);
            }
        }
        Ok(tensors)
    }

    /// Takes the long lists of states out of the tensors of a checkpoint.
    ///
    /// # Errors
    /// A tensor is missing, of another type, or of no metric.
    pub fn take_tensors(&mut self, tensors: &mut Tensors) -> Result<(), String> {
        let mut names = std::mem::take(&mut self.tensors);
        for (at, state) in self.metrics.iter_mut().enumerate() {
            for (list, dtype) in [("sums", TensorDType::F64), ("kept", TensorDType::F32)] {
                let name = tensor_name(at, list);
                let Some(place) = names.iter().position(|listed| *listed == name) else { continue };
                names.remove(place);
                let tensor = take_of(tensors, &name, dtype)?;
                match list {
                    "sums" => {
                        let sums = tensor.bytes().as_chunks::<8>().0.iter();
                        state.sums = sums.map(|&sum| f64::from_le_bytes(sum)).collect();
                    }
                    _ => state.kept = tensor.to_f32().unwrap_or_default(),
                }
            }
        }
        names.first().map_or(Ok(()), |name| Err(format!("no metric has the tensor {name:?}")))
    }

    /// Says which metric's saved state is not one that the metric starts with. `widths` are the numbers of
    /// values that the metrics have of a sample.
    pub fn problem(&self, metrics: &[Arc<dyn Metric>], widths: &[usize]) -> Option<String> {
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

/// Adds the values of samples and their weights to two sums. A weight of 0 adds nothing, also where the value
/// is not finite.
fn weighted(values: &[f32], weights: Option<&[f32]>, (mut sum, mut weight): (f64, f64)) -> (f64, f64) {
    for (i, &value) in values.iter().enumerate() {
        let own = weights.map_or(1.0, |weights| f64::from(weights[i]));
        if own != 0.0 {
            sum += f64::from(value) * own;
            weight += own;
        }
    }
    (sum, weight)
}

/// Returns the name of the tensor of a metric's `sums` or `kept`.
fn tensor_name(metric: usize, list: &str) -> String {
    format!("running/{metric}/{list}")
}
