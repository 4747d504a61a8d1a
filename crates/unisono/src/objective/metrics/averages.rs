//! Counts of labels by class, and the averages of a quotient of such counts.

use unisono_graph::Type;

use super::labels::{Labels, Task};
use super::reduction::ratio;
use super::{MetricState, SampleValues};

/// How many labels a class has: each counts with its sample's weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// The labels of the class that are predicted to be of it.
    pub hits: f64,
    /// The labels that are predicted to be of the class.
    pub predicted: f64,
    /// The labels of the class.
    pub actual: f64,
}

/// How the numbers of classes become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Average {
    /// The number of one class counts alone.
    One(usize),
    /// The number is the mean over classes.
    Macro,
    /// The number follows from the counts of all classes together.
    Micro,
    /// The number is the mean over classes, weighted with their true labels.
    Weighted,
}

/// Labels that are counted by class, for a quotient of counts.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub name: String,
    /// Whether the name is one of the user's.
    pub is_named: bool,
    pub labels: Labels,
    pub average: Average,
}

impl Counted {
    pub fn new(name: String, task: Task, average: Average) -> Self {
        Self { name, is_named: false, labels: Labels::new(task), average }
    }

    /// The state: for each class the labels hit, predicted and actual.
    pub fn start(&self) -> MetricState {
        MetricState::zeros(3 * self.labels.classes())
    }

    pub fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        match self.average {
            Average::One(class) if class >= self.labels.classes() => {
                Err(format!("class {class} is not in 0..{}", self.labels.classes()))
            }
            _ => self.labels.accepts(output, target),
        }
    }

    pub fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
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
    /// part of a mean; labels that do not exclude each other are, unless none of them is predicted or true.
    /// The average is NaN where nothing was measured.
    pub fn average(&self, state: &MetricState, quotient: impl Fn(Count) -> (f64, f64)) -> f64 {
        let counts = counts(state);
        let score = |count: &Count| share(quotient(*count));
        let actual = || counts.iter().map(|count| count.actual).sum::<f64>();
        let is_there = |count: &&Count| count.predicted + count.actual > 0.0;
        match self.average {
            Average::One(class) => counts.get(class).map_or(f64::NAN, |count| {
                let (numerator, denominator) = quotient(*count);
                if count.actual > 0.0 {
                    share((numerator, denominator))
                } else {
                    ratio(numerator, denominator)
                }
            }),
            Average::Micro => {
                let pairs = counts.iter().map(|count| quotient(*count));
                let sums = pairs.fold((0.0, 0.0), |sum, x| (sum.0 + x.0, sum.1 + x.1));
                if actual() > 0.0 { share(sums) } else { ratio(sums.0, sums.1) }
            }
            Average::Macro => {
                let there = counts.iter().filter(is_there).count();
                let sum: f64 = counts.iter().filter(is_there).map(score).sum();
                let is_multilabel = matches!(self.labels.task, Task::Multilabel(_));
                ratio(sum, if is_multilabel && there > 0 { counts.len() } else { there } as f64)
            }
            Average::Weighted => {
                let sum: f64 = counts.iter().map(|count| score(count) * count.actual).sum();
                ratio(sum, actual())
            }
        }
    }
}

/// Returns a quotient that is 0 where the divisor is, as scikit-learn has it for a class that is never
/// predicted.
fn share((numerator, denominator): (f64, f64)) -> f64 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
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

            /// Creates the metric of one of the classes, against all others. It is NaN for a class that has
            /// no labels and is never predicted. A recall is NaN for every class without labels.
            pub fn of_class(classes: usize, class: usize) -> Self {
                Self::of(
                    format!(concat!($label, " (class {})"), class),
                    Task::Classes(classes),
                    Average::One(class),
                )
            }

            /// Takes labels that do not exclude each other: logits and targets `[B, ..., classes]`, with
            /// targets of 0 and 1. Each label takes the place of a class in the average; the mean counts a
            /// label that is neither predicted nor true as 0, as scikit-learn and torchmetrics do. Without
            /// classes, as of [`binary`](Self::binary), it changes nothing. Default: one class a label.
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
                self.counted().is_named = true;
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

            fn better(&self) -> Option<Better> {
                Some(Better::Higher)
            }

            fn takes_largest(&self) -> bool {
                self.counted.labels.takes_largest()
            }

            fn counts_label(&self, label: i32) -> bool {
                self.counted.labels.ignored != Some(label)
            }

            fn takes_logits(&self) -> bool {
                self.counted.labels.takes_logits()
            }

            fn takes_probabilities(&self) -> bool {
                self.counted.labels.takes_probabilities()
            }

            fn per_sample(&self, output: &Var, target: &Var) -> Var {
                self.counted.labels.trace(output, target)
            }

            fn reduction(&self) -> Option<&dyn Reduction> {
                Some(self)
            }
        }

        impl Reduction for $name {
            fn settings(&self) -> Option<String> {
                Some(format!("{:?}{}", self.counted, self.own_settings()))
            }

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

pub(super) use averages;
