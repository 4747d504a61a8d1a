//! Precision, recall, F-beta and intersection over union: quotients of counts of labels.

use unisono_graph::{Type, Var};

use super::labels::{Labels, Task};
use super::reduction::ratio;
use super::{Metric, MetricState, MetricValue, Reduction, SampleValues};

/// How many labels a class has: each counts with its sample's weight.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Of the class, and predicted to be.
    hits: f64,
    /// Predicted to be of the class.
    predicted: f64,
    /// Of the class.
    actual: f64,
}

/// How the numbers of classes become one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Average {
    /// That of one class.
    One(usize),
    /// The mean over classes.
    Macro,
    /// That of the counts of all classes together.
    Micro,
    /// The mean over classes, weighted with their true labels.
    Weighted,
}

/// Labels that are counted by class, for a quotient of counts.
#[derive(Clone, Debug)]
struct Counted {
    name: String,
    labels: Labels,
    average: Average,
}

impl Counted {
    fn new(name: String, task: Task, average: Average) -> Self {
        Self { name, labels: Labels::new(task), average }
    }

    /// The state: for each class the labels hit, predicted and actual.
    fn start(&self) -> MetricState {
        MetricState::zeros(3 * self.labels.classes())
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        match self.average {
            Average::One(class) if class >= self.labels.classes() => {
                Err(format!("class {class} is not in 0..{}", self.labels.classes()))
            }
            _ => self.labels.accepts(output, target),
        }
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        let counts = state.sums.as_chunks_mut::<3>().0;
        let mut add = |class: usize, which: usize| {
            counts.get_mut(class).into_iter().for_each(|count| count[which] += sample.weight);
        };
        for pair in self.labels.pairs(sample) {
            if let Task::Multilabel(labels) = self.labels.task {
                let label = pair.place % labels.max(1);
                let (predicted, actual) = (pair.predicted == 1, pair.actual == 1);
                [predicted && actual, predicted, actual]
                    .iter()
                    .enumerate()
                    .filter(|(_, counts)| **counts)
                    .for_each(|(which, _)| add(label, which));
                continue;
            }
            if pair.predicted == pair.actual {
                add(pair.actual, 0);
            }
            add(pair.predicted, 1);
            add(pair.actual, 2);
        }
    }

    /// Returns the average of a quotient of each class. Classes that are neither predicted nor true are no
    /// part of a mean.
    fn average(&self, state: &MetricState, quotient: impl Fn(Count) -> (f64, f64)) -> f64 {
        let counts = counts(state);
        let score = |count: &Count| {
            let (numerator, denominator) = quotient(*count);
            ratio(numerator, denominator)
        };
        match self.average {
            Average::One(class) => counts.get(class).map_or(0.0, score),
            Average::Micro => {
                let pairs = counts.iter().map(|count| quotient(*count));
                let (numerator, denominator) = pairs.fold((0.0, 0.0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
                ratio(numerator, denominator)
            }
            Average::Macro => {
                let there = || counts.iter().filter(|count| count.predicted + count.actual > 0.0);
                ratio(there().map(score).sum(), there().count() as f64)
            }
            Average::Weighted => {
                let sum: f64 = counts.iter().map(|count| score(count) * count.actual).sum();
                ratio(sum, counts.iter().map(|count| count.actual).sum())
            }
        }
    }
}

fn counts(state: &MetricState) -> Vec<Count> {
    let count = |&[hits, predicted, actual]: &[f64; 3]| Count { hits, predicted, actual };
    state.sums.as_chunks::<3>().0.iter().map(count).collect()
}

/// The constructors and settings that all metrics of counts share.
macro_rules! averages {
    ($name:ident, $label:literal) => {
        impl $name {
            /// Creates the metric of class 1 of two: logits and targets `[B, ...]`, or `[B, 1]` and `[B]`,
            /// with targets of 0 and 1 (scikit-learn's `average="binary"`). All labels of a sample count
            /// alike. Its name is the metric's alone.
            pub fn binary() -> Self {
                Self::of($label.into(), Task::Binary, Average::One(1))
            }

            /// Creates the mean over classes. Classes that are neither predicted nor true are left out, as in
            /// scikit-learn and torchmetrics; Keras counts them as 0.
            pub fn macro_average(classes: usize) -> Self {
                Self::of(concat!($label, " (macro)").into(), Task::Classes(classes), Average::Macro)
            }

            /// Creates the metric of the counts of all classes together.
            pub fn micro_average(classes: usize) -> Self {
                Self::of(concat!($label, " (micro)").into(), Task::Classes(classes), Average::Micro)
            }

            /// Creates the mean over classes, each weighted with its number of true labels.
            pub fn weighted_average(classes: usize) -> Self {
                Self::of(concat!($label, " (weighted)").into(), Task::Classes(classes), Average::Weighted)
            }

            /// Creates the metric of one of the classes, against all others.
            pub fn of_class(classes: usize, class: usize) -> Self {
                Self::of(
                    format!(concat!($label, " (class {})"), class),
                    Task::Classes(classes),
                    Average::One(class),
                )
            }

            /// Takes labels that do not exclude each other: logits and targets `[B, ..., classes]`, with
            /// targets of 0 and 1. Each label takes the place of a class in the average. Without classes, as
            /// of [`binary`](Self::binary), it changes nothing. Default: one class a label.
            pub fn multilabel(mut self) -> Self {
                if let Task::Classes(labels) = self.counted().labels.task {
                    self.counted().labels.task = Task::Multilabel(labels);
                }
                self
            }

            /// Sets the probability above which a label is predicted, between 0 and 1, for labels of two
            /// classes and [`multilabel`](Self::multilabel). Default: 0.5.
            ///
            /// The model gives logits. sigmoid(x) > p means x > ln(p / (1 - p)), and the logits are compared
            /// with the largest f32 that is not above that logarithm.
            pub fn threshold(mut self, probability: f64) -> Self {
                self.counted().labels.threshold.probability = probability;
                self
            }

            /// Takes a model that gives probabilities, to which the threshold then applies as it is. Default:
            /// the model gives logits. It matters to thresholds only: the largest probability is that of the
            /// largest logit.
            pub fn probabilities(mut self) -> Self {
                self.counted().labels.threshold.of_probabilities = true;
                self
            }

            /// Sets a label that counts nowhere (torchmetrics' `ignore_index`). Default: all
            /// labels count.
            pub fn ignore_index(mut self, label: i32) -> Self {
                self.counted().labels.ignored = Some(label);
                self
            }

            /// Sets the name in histories, such as for the same metric with two thresholds. Default: the
            /// metric's name, with the average in brackets.
            pub fn named(mut self, name: &str) -> Self {
                self.counted().name = name.into();
                self
            }

            fn counted(&mut self) -> &mut Counted {
                &mut self.counted
            }
        }

        impl Metric for $name {
            fn name(&self) -> &str {
                &self.counted.name
            }

            fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
                self.check()?;
                self.counted.accepts(output, target)
            }

            fn per_sample(&self, output: &Var, target: &Var) -> Var {
                self.counted.labels.trace(output, target)
            }

            fn reduction(&self) -> Option<&dyn Reduction> {
                Some(self)
            }
        }

        impl Reduction for $name {
            fn start(&self, _values: usize) -> MetricState {
                self.counted.start()
            }

            fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
                self.counted.update(state, sample);
            }

            fn finish(&self, state: &MetricState) -> MetricValue {
                self.counted.average(state, |count| self.quotient(count)).into()
            }
        }
    };
}

/// Precision: the share of the labels predicted to be of a class that are, hits / predicted (scikit-learn's
/// `precision_score`, Keras's and torchmetrics' `Precision`). It is 0 for a class that is never predicted.
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
/// `recall_score`, Keras's and torchmetrics' `Recall`). It is 0 for a class that is predicted, but of which
/// there is no label.
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
    /// such as `f2 (macro)`. Default: 1.
    pub fn beta(mut self, beta: f64) -> Self {
        if let Some(rest) = self.counted.name.strip_prefix(&format!("f{}", self.beta)) {
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
}

impl Quotient for Iou {
    fn of(name: String, task: Task, average: Average) -> Self {
        Self { counted: Counted::new(name, task, average) }
    }

    fn quotient(&self, Count { hits, predicted, actual }: Count) -> (f64, f64) {
        (hits, predicted + actual - hits)
    }
}
