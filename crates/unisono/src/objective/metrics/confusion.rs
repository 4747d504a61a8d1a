//! The confusion matrix, and Matthews' correlation, which follows from how often each class is predicted,
//! true and hit.

use unisono_graph::{Type, Var};

use super::labels::{Labels, Task};
use super::{Better, Metric, MetricKind, MetricState, MetricValue, Reduction, SampleValues, Table};

/// The confusion matrix: how many labels of each class (a row) are predicted to be of each class (a column),
/// each with the weight that the data give its sample (scikit-learn's `confusion_matrix`, torchmetrics'
/// `ConfusionMatrix`).
///
/// It is a table, so histories do not contain it: [`Evaluation::table`](crate::Evaluation::table) returns it
/// under the name `confusion matrix`. In training it takes `classes`^2 numbers of the host's memory and of
/// checkpoints within an epoch.
///
/// Shapes: logits `[B, ..., classes]` with labels `[B, ...]` or probabilities `[B, ..., classes]`; logits and
/// targets `[B, ...]`, or `[B, 1]` and `[B]`, of two classes. Errors: outputs with another number of classes,
/// no class, a threshold that is not between 0 and 1.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let data = unisono::data::Loader::new(unisono::data::Memory::labelled([0.0; 64], [64], [0])?);
/// use unisono::{ConfusionMatrix, Dense, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).metric(ConfusionMatrix::new(10));
/// let mut trainer = builder.build(&data.fields()?)?;
/// let evaluation = trainer.evaluate(&data)?;
/// for row in evaluation.table("confusion matrix").iter().flat_map(|table| table.rows()) {
///     println!("{row:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    name: String,
    labels: Labels,
}

/// Matthews' correlation coefficient, from -1 to 1: the correlation of predicted and true labels
/// (scikit-learn's `matthews_corrcoef`, torchmetrics' `MatthewsCorrCoef`, Gorodkin 2004 for several classes).
/// It is 0 where all labels, or all predicted ones, are of one class, as in scikit-learn, and NaN where there
/// is no label.
///
/// Shapes and errors are those of [`ConfusionMatrix`].
#[doc(alias = "MatthewsCorrCoef")]
#[derive(Clone, Debug)]
pub struct Matthews {
    name: String,
    labels: Labels,
}

/// The constructors and settings that both share.
macro_rules! labelled {
    ($name:ident, $label:literal, $better:expr) => {
        impl $name {
            /// Creates the metric for labels in 0..`classes`.
            pub fn new(classes: usize) -> Self {
                Self { name: $label.into(), labels: Labels::new(Task::Classes(classes)) }
            }

            /// Creates the metric for logits of two classes, with targets of 0 and 1.
            pub fn binary() -> Self {
                Self { name: $label.into(), labels: Labels::new(Task::Binary) }
            }

            /// Sets the probability above which class 1 of two is predicted, between 0 and 1, see
            /// [`PrecisionScore::threshold`](crate::PrecisionScore::threshold). Default: 0.5.
            pub fn threshold(mut self, probability: f64) -> Self {
                self.labels.threshold.probability = probability;
                self
            }

            /// Takes a model that gives probabilities. Default: it gives logits.
            pub fn probabilities(mut self) -> Self {
                self.labels.threshold.of_probabilities = true;
                self
            }

            /// Sets a label that counts nowhere (torchmetrics' `ignore_index`). Default: all labels count.
            pub fn ignore_index(mut self, label: i32) -> Self {
                self.labels.ignored = Some(label);
                self
            }

            /// Sets the metric's name.
            #[doc = concat!("Default: `", $label, "`.")]
            pub fn named(mut self, name: &str) -> Self {
                self.name = name.into();
                self
            }
        }

        impl Metric for $name {
            fn name(&self) -> &str {
                &self.name
            }

            fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
                self.labels.accepts(output, target)
            }

            fn better(&self) -> Option<Better> {
                $better
            }

            fn takes_largest(&self) -> bool {
                self.labels.takes_largest()
            }

            fn counts_label(&self, label: i32) -> bool {
                self.labels.ignored != Some(label)
            }

            fn takes_logits(&self) -> bool {
                self.labels.takes_logits()
            }

            fn takes_probabilities(&self) -> bool {
                self.labels.takes_probabilities()
            }

            fn per_sample(&self, output: &Var, target: &Var) -> Var {
                self.labels.trace(output, target)
            }

            fn reduction(&self) -> Option<&dyn Reduction> {
                Some(self)
            }
        }
    };
}

labelled!(ConfusionMatrix, "confusion matrix", None);
labelled!(Matthews, "matthews", Some(Better::Higher));

impl Reduction for ConfusionMatrix {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(self.labels.classes().saturating_mul(self.labels.classes()))
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        let classes = self.labels.classes();
        for pair in self.labels.pairs(sample) {
            if pair.predicted < classes && pair.actual < classes {
                let cell = state.sums.get_mut(pair.actual * classes + pair.predicted);
                cell.into_iter().for_each(|count| *count += sample.weight);
            }
        }
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        Table::new(self.labels.classes(), state.sums.clone()).into()
    }

    fn kind(&self) -> MetricKind {
        MetricKind::Table
    }
}

impl Reduction for Matthews {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    /// The sums are the labels that are hit, and for each class those predicted and actual.
    fn start(&self, _values: usize) -> MetricState {
        MetricState::zeros(1 + 2 * self.labels.classes())
    }

    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        let classes = self.labels.classes();
        for pair in self.labels.pairs(sample) {
            let mut add = |index: usize| {
                state.sums.get_mut(index).into_iter().for_each(|count| *count += sample.weight);
            };
            if pair.predicted < classes {
                add(1 + 2 * pair.predicted);
            }
            if pair.actual < classes {
                add(2 + 2 * pair.actual);
            }
            if pair.predicted == pair.actual && pair.actual < classes {
                add(0);
            }
        }
    }

    /// Returns the covariance of predicted and true labels over the root of the product of their variances,
    /// each times the square of the number of labels.
    fn finish(&self, state: &MetricState) -> MetricValue {
        let classes = state.sums.get(1..).unwrap_or_default().as_chunks::<2>().0;
        let total: f64 = classes.iter().map(|[_, actual]| actual).sum();
        let sum = |of: fn(&[f64; 2]) -> f64| classes.iter().map(of).sum::<f64>();
        let covariance = state.sum(0) * total - sum(|[predicted, actual]| predicted * actual);
        let predicted = total * total - sum(|[predicted, _]| predicted * predicted);
        let actual = total * total - sum(|[_, actual]| actual * actual);
        let number = match predicted > 0.0 && actual > 0.0 {
            _ if total == 0.0 => f64::NAN,
            true => covariance / (predicted.sqrt() * actual.sqrt()),
            false => 0.0,
        };
        number.into()
    }
}
