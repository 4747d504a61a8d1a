//! Predicted and true labels: what metrics of classification count, with thresholds on probabilities.

use unisono_graph::{DType, Type, Var};

use super::SampleValues;
use super::regression::like_output;
use crate::objective::losses::as_output;

/// How labels are predicted, and which labels count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    pub task: Task,
    /// The label that counts nowhere.
    pub ignored: Option<i32>,
    pub threshold: Threshold,
}

/// What the labels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The label is one of two classes. Class 1 is the positive class.
    Binary,
    /// The label is one of so many classes.
    Classes(usize),
    /// There are so many labels that do not exclude each other.
    Multilabel(usize),
}

/// From which probability on a label is predicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    pub probability: f64,
    /// Whether the model's outputs are probabilities instead of logits.
    pub of_probabilities: bool,
}

impl Default for Threshold {
    fn default() -> Self {
        Self { probability: 0.5, of_probabilities: false }
    }
}

impl Threshold {
    /// Checks that the threshold is a probability that is neither 0 nor 1.
    ///
    /// # Errors
    /// It is not.
    pub fn check(self) -> Result<(), String> {
        let Self { probability, .. } = self;
        let fits = probability > 0.0 && probability < 1.0;
        fits.then_some(()).ok_or_else(|| format!("threshold {probability} is not between 0 and 1"))
    }

    /// Returns the number that outputs have to exceed: the largest f32 t for which x > t is the same as
    /// sigmoid(x) > p for all f32 x. Both are x > ln(p / (1 - p)), so the logarithm is rounded down.
    pub fn output(self) -> f32 {
        let p = self.probability;
        let exact = if self.of_probabilities { p } else { libm::log(p) - libm::log1p(-p) };
        let nearest = exact as f32;
        if f64::from(nearest) > exact { nearest.next_down() } else { nearest }
    }
}

/// One label of a sample.
pub(super) struct Pair {
    /// The number of the label among the sample's labels.
    pub place: usize,
    pub predicted: usize,
    pub actual: usize,
}

impl Labels {
    pub fn new(task: Task) -> Self {
        Self { task, ignored: None, threshold: Threshold::default() }
    }

    /// Returns the number of classes, or of labels that do not exclude each other.
    pub fn classes(&self) -> usize {
        match self.task {
            Task::Binary => 2,
            Task::Classes(count) | Task::Multilabel(count) => count,
        }
    }

    /// Returns whether classes exclude each other.
    pub fn takes_largest(&self) -> bool {
        matches!(self.task, Task::Classes(_))
    }

    /// Returns whether a threshold applies, and applies to logits.
    pub fn takes_logits(&self) -> bool {
        !matches!(self.task, Task::Classes(_)) && !self.threshold.of_probabilities
    }

    /// Returns whether a threshold applies, and applies to probabilities.
    pub fn takes_probabilities(&self) -> bool {
        !matches!(self.task, Task::Classes(_)) && self.threshold.of_probabilities
    }

    /// Checks the settings, and that outputs and targets are of the task.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        self.threshold.check()?;
        match self.task {
            Task::Binary => like_output(output, target),
            Task::Classes(classes) => classes_fit(classes, output, target),
            Task::Multilabel(0) => Err("needs at least one label".into()),
            Task::Multilabel(labels) => {
                like_output(output, target)?;
                let fits = output.dims.last() == Some(&labels);
                fits.then_some(()).ok_or_else(|| format!("needs logits of {labels} labels, got {output}"))
            }
        }
    }

    /// Traces the predicted labels of each sample, followed by the true ones: `[B, 2 n]` for n labels.
    pub fn trace(&self, output: &Var, target: &Var) -> Var {
        let (predicted, actual) = match self.task {
            Task::Classes(_) if target.dims() == output.dims() => (output.argmax(), target.argmax()),
            Task::Classes(_) => (output.argmax(), target.to_f32()),
            Task::Binary | Task::Multilabel(_) => {
                let least = output.tape().constant(self.threshold.output());
                (output.greater(&least), as_output(output, target))
            }
        };
        let flat = |x: &Var| x.reshape(&[x.ty().count()]);
        flat(&predicted).concat(&[&flat(&actual)], -1)
    }

    /// Returns the labels of a sample that count. A label that is no class is `usize::MAX`, or the number of
    /// classes where it is the prediction of logits that are not numbers.
    pub fn pairs<'a>(&'a self, sample: &SampleValues<'a>) -> impl Iterator<Item = Pair> + 'a {
        let (predicted, actual) = sample.values.split_at(sample.values.len() / 2);
        let is_class = matches!(self.task, Task::Classes(_));
        let class = move |x: f32| match is_class {
            true if x < 0.0 => usize::MAX,
            true => x as usize,
            false => usize::from(x > 0.5),
        };
        let counts = move |actual: f32| self.ignored.is_none_or(|ignored| actual != ignored as f32);
        let pairs = predicted.iter().zip(actual).enumerate();
        let pairs = pairs.filter(move |(_, (_, actual))| counts(**actual));
        pairs.map(move |(place, (&predicted, &actual))| Pair {
            place,
            predicted: class(predicted),
            actual: class(actual),
        })
    }
}

/// Checks that outputs have a logit for each class, and that targets are labels, or probabilities of all
/// classes.
///
/// # Errors
/// They are not.
pub(super) fn classes_fit(classes: usize, output: &Type, target: &Type) -> Result<(), String> {
    if classes == 0 {
        return Err("needs at least one class".into());
    }
    let Some((&last, rest)) = output.dims.split_last() else {
        return Err(format!("needs an axis of {classes} classes, got {output}"));
    };
    if last != classes {
        return Err(format!("needs logits of {classes} classes, got {output}"));
    }
    let probabilities = target.dims == output.dims && target.dtype == DType::F32;
    match rest == target.dims || probabilities {
        true => Ok(()),
        false => Err(format!("needs labels or probabilities for logits {output}, got {target}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_on_a_logit_is_the_one_on_its_probability() {
        for probability in [0.5, 0.25, 0.3, 0.9, 1e-3, 0.999_999, 0.731_058_6] {
            let t = Threshold { probability, of_probabilities: false }.output();
            let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
            let exact = (probability / (1.0 - probability)).ln();
            assert!(f64::from(t) <= exact && f64::from(t.next_up()) > exact, "{probability}: {t}");
            // Away from the last bit of f64 this is the comparison of the sigmoid.
            for x in [t - 1e-4, t + 1e-4, t - 1.0, t + 1.0] {
                assert_eq!(x > t, sigmoid(x) > probability, "{probability}: {x}");
            }
        }
        assert_eq!(Threshold::default().output(), 0.0);
        let third = Threshold { probability: 1.0 / 3.0, of_probabilities: true };
        assert!(f64::from(third.output()) <= 1.0 / 3.0);
        for wrong in [0.0, 1.0, -0.5, 2.0, f64::NAN] {
            assert!(Threshold { probability: wrong, of_probabilities: false }.check().is_err(), "{wrong}");
        }
    }
}
