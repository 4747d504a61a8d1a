//! Accuracy: the share of labels that are predicted rightly.

use unisono_graph::{DType, Type, Var};

use super::reduction::MeanOfLabels;
use super::{Better, Metric, Reduction};
use crate::objective::losses::{as_output, fits_binary, mean_of_sample};

/// Accuracy: the share of labels for which the largest logit is that of the label. If logits are equal, the
/// first counts as the largest.
///
/// Shapes: logits `[B, ..., classes]` with labels `[B, ...]` (Keras's `SparseCategoricalAccuracy`,
/// torchmetrics' `MulticlassAccuracy` with `average="micro"`), or with probabilities `[B, ..., classes]`,
/// whose largest one is the label (Keras's `CategoricalAccuracy`). For one logit, or several that do not
/// exclude each other, see [`BinaryAccuracy`].
///
/// Errors: targets of other shapes, a single logit, or an ignored label with
/// probabilities.
///
/// ```
/// use unisono::{Accuracy, CrossEntropy, Dense, Trainer};
///
/// let plain = Trainer::builder(Dense::new(10)).metric(Accuracy);
/// let padded = Trainer::builder(Dense::new(10))
///     .loss(CrossEntropy::new().ignore_index(-100))
///     .metric(Accuracy::new().ignore_index(-100));
/// ```
#[doc(alias("CategoricalAccuracy", "MulticlassAccuracy", "SparseCategoricalAccuracy"))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy {
    ignored: Option<i32>,
}

/// The same as [`Accuracy::new`].
#[expect(non_upper_case_globals, reason = "it reads like the metrics that have no settings")]
pub const Accuracy: Accuracy = Accuracy::new();

impl Accuracy {
    /// Creates the accuracy of all labels.
    pub const fn new() -> Self {
        Self { ignored: None }
    }

    /// Sets the label that counts neither as right nor as wrong (torchmetrics' `ignore_index`). Default: all
    /// labels count, also those that the loss ignores
    /// ([`CrossEntropy::ignore_index`](crate::CrossEntropy::ignore_index)).
    ///
    /// The accuracy is then the mean over all other labels, each with its sample's weight.
    pub fn ignore_index(mut self, label: i32) -> Self {
        self.ignored = Some(label);
        self
    }
}

impl Metric for Accuracy {
    fn name(&self) -> &str {
        "accuracy"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let probabilities = target.dims == output.dims && target.dtype == DType::F32;
        match output.dims.split_last() {
            Some((1, rest)) if probabilities || rest == target.dims => Err(format!(
                "{output} has one logit, which is always the largest: BinaryAccuracy is for a yes or no, MeanAbsoluteError and R2 \
                 are for a quantity"
            )),
            Some((_, rest)) if rest == target.dims => Ok(()),
            Some(_) if probabilities && self.ignored.is_none() => Ok(()),
            Some(_) if probabilities => {
                Err(format!("ignores a label, but targets {target} are probabilities"))
            }
            _ => Err(format!("needs labels or probabilities for logits {output}, got {target}")),
        }
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    fn takes_largest(&self) -> bool {
        true
    }

    fn counts_label(&self, label: i32) -> bool {
        self.ignored != Some(label)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let labels = if target.dims() == output.dims() { target.argmax() } else { target.to_f32() };
        let right = output.argmax().eq_mask(&labels);
        of_labels(&right, &labels, self.ignored)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        reduction_of_labels(self.ignored)
    }
}

/// Traces the mean of a value of each label over a sample's labels, `[B]`. Where a label is ignored, traces
/// the sum over the sample's other labels and their number, `[B, 2]`. The labels are f32.
pub(super) fn of_labels(value: &Var, labels: &Var, ignored: Option<i32>) -> Var {
    let Some(ignored) = ignored else { return mean_of_sample(value) };
    let number = |x: f32| labels.tape().constant(x);
    let counts = 1.0 - labels.eq_mask(&number(ignored as f32));
    let total = |x: &Var| x.reshape(&[x.ty().count()]).sum(&[-1]).add_axis();
    total(&counts.select(value, &number(0.0))).concat(&[&total(&counts)], -1)
}

/// Returns the reduction of what [`of_labels`] gives.
pub(super) fn reduction_of_labels(ignored: Option<i32>) -> Option<&'static dyn Reduction> {
    ignored.map(|_| &MeanOfLabels as &dyn Reduction)
}

/// Binary accuracy: the share of logits that are above 0 exactly where their target is above 0.5
/// (torchmetrics' `BinaryAccuracy`). All logits of a sample count alike. Keras's `BinaryAccuracy` agrees when
/// it is given probabilities: they exceed 0.5 where logits exceed 0.
///
/// Shapes: logits and targets `[B, ...]`. A last axis of length 1 may be missing on one side: labels `[B]`
/// fit logits `[B, 1]`. Errors: the two shapes differ otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryAccuracy;

impl Metric for BinaryAccuracy {
    fn name(&self) -> &str {
        "binary accuracy"
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let fits = fits_binary(output, target);
        fits.then_some(()).ok_or_else(|| format!("needs targets of the logits' shape {output}, got {target}"))
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    fn takes_logits(&self) -> bool {
        true
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let above = |x: &Var, threshold: f32| x.greater(&x.tape().constant(threshold));
        mean_of_sample(&above(output, 0.0).eq_mask(&above(&as_output(output, target), 0.5)))
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::{Array, Feed, Frame, Tape, interpret};

    use super::*;

    /// Returns the metric of each sample, or its sum over labels and the number of these.
    fn run(metric: &dyn Metric, output: (&[usize], &[f64]), target: (&[usize], &[f64], DType)) -> Vec<f64> {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&output.0[1..]));
        let y = tape.input("y", Type::sample(&target.0[1..]).of(target.2));
        assert_eq!(metric.accepts(x.ty(), y.ty()), Ok(()));
        let each = metric.per_sample(&x, &y);
        let expected = metric.reduction().map_or(&[][..], |_| &[2]);
        assert_eq!(each.ty(), &Type::sample(expected));
        tape.output("each", &each);
        let inputs = vec![Array::new(output.0, output.1.to_vec()), Array::new(target.0, target.1.to_vec())];
        let feed = Feed { frame: Frame { shards: vec![output.0[0]] }, inputs, states: vec![] };
        interpret(&tape.finish().unwrap(), &feed).outputs["each"].data.clone()
    }

    /// The logits of two samples with three labels each. The largest are those of 1, 0, 2 and 2, 0, 1; in the
    /// first sample, 0 is the first of two equal ones.
    const LOGITS: [f64; 18] = [0., 3., 1., 5., 5., 0., -2., -3., -1., 0., 1., 2., 9., 8., 7., -1., 0.5, 0.25];
    const SHAPE: &[usize] = &[2, 3, 3];

    #[test]
    fn labels_and_those_that_are_ignored() {
        let labels = |y: &'static [f64]| (&[2usize, 3][..], y, DType::I32);
        let all = labels(&[1., 0., 0., 2., 1., 0.]);
        assert_eq!(run(&Accuracy, (SHAPE, &LOGITS), all), [2. / 3., 1. / 3.]);
        assert_eq!(run(&Accuracy::new(), (SHAPE, &LOGITS), all), [2. / 3., 1. / 3.]);
        let some = labels(&[1., -100., -100., -100., 1., 1.]);
        assert_eq!(run(&Accuracy::new().ignore_index(-100), (SHAPE, &LOGITS), some), [1., 1., 1., 2.]);
        // The ignored label may be a class too, and a sample may have no other label.
        let padding = labels(&[0., 0., 0., 2., 0., 0.]);
        assert_eq!(run(&Accuracy::new().ignore_index(0), (SHAPE, &LOGITS), padding), [0., 0., 1., 1.]);
        let one = (&[3usize][..], &[1., -1., 2.][..], DType::I32);
        let one = run(&Accuracy::new().ignore_index(-1), (&[3, 3], &LOGITS[..9]), one);
        assert_eq!(one, [1., 1., 0., 0., 1., 1.]);
    }

    #[test]
    fn the_largest_probability_is_the_right_one() {
        let y = [0.2, 0.5, 0.3, 0., 1., 0., 0., 0., 1., 1., 0., 0., 0.4, 0.3, 0.3, 0., 1., 0.];
        assert_eq!(run(&Accuracy, (SHAPE, &LOGITS), (SHAPE, &y, DType::F32)), [2. / 3., 2. / 3.]);
    }

    #[test]
    fn one_logit_and_several() {
        let one = (&[4usize, 1][..], &[0.0, 0.1, -0.1, 7.0][..]);
        assert_eq!(run(&BinaryAccuracy, one, (&[4, 1], &[0., 1., 1., 0.5], DType::F32)), [1., 1., 0., 0.]);
        // Labels may lack the axis of the one logit, or have one that the logit lacks.
        let labels = [0., 1., 1., 0.];
        assert_eq!(run(&BinaryAccuracy, one, (&[4], &labels, DType::I32)), [1., 1., 0., 0.]);
        let flat = (&[4usize][..], one.1);
        assert_eq!(run(&BinaryAccuracy, flat, (&[4, 1], &labels, DType::F32)), [1., 1., 0., 0.]);
        let two = (&[2usize, 2][..], one.1);
        assert_eq!(run(&BinaryAccuracy, two, (&[2, 2], &[0., 0., 0., 1.], DType::F32)), [0.5, 1.]);
    }

    #[test]
    fn targets_that_do_not_fit_say_why() {
        let (f32s, i32s) = (Type::sample, |dims: &[usize]| Type::sample(dims).of(DType::I32));
        for (problem, expected) in [
            (
                Accuracy.accepts(&f32s(&[1]), &f32s(&[1])),
                "[B, 1] has one logit, which is always the largest: BinaryAccuracy is for a yes or no, \
                 MeanAbsoluteError and R2 are for a quantity",
            ),
            (
                Accuracy.accepts(&f32s(&[1]), &i32s(&[])),
                "[B, 1] has one logit, which is always the largest: BinaryAccuracy is for a yes or no, \
                 MeanAbsoluteError and R2 are for a quantity",
            ),
            (
                Accuracy::new().ignore_index(0).accepts(&f32s(&[3]), &f32s(&[3])),
                "ignores a label, but targets [B, 3] are probabilities",
            ),
            (
                Accuracy.accepts(&f32s(&[3]), &i32s(&[3])),
                "needs labels or probabilities for logits [B, 3], got [B, 3] i32",
            ),
            (
                BinaryAccuracy.accepts(&f32s(&[2]), &i32s(&[])),
                "needs targets of the logits' shape [B, 2], got [B] i32",
            ),
        ] {
            assert_eq!(problem, Err(expected.into()));
        }
    }
}
