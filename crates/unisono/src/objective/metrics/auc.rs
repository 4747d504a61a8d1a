//! The areas under the ROC curve and the precision-recall curve, exact for all scores.

use unisono_graph::{Type, Var};

use super::labels::classes_fit;
use super::reduction::ratio;
use super::regression::like_output;
use super::{Better, Metric, MetricKind, MetricState, MetricValue, Reduction, SampleValues};
use crate::objective::losses::as_output;

/// The area under a curve over all thresholds: [`Auc::roc`] and [`Auc::pr`].
///
/// It is exact, because every score is a threshold, and equal scores are one threshold, as in scikit-learn.
/// (Keras and torchmetrics with `thresholds` take some hundred thresholds.) To be exact, it stores the score,
/// the label and the weight of each label in the host's memory, in training and in evaluation. This takes 12
/// bytes for each label, so 12 MB for a million, or 4 (`classes` + 2) bytes with [`Auc::one_vs_rest`]. A
/// checkpoint in the middle of an epoch contains the same bytes, and audits take up to twice as much memory
/// again ([`Builder::audits`](crate::Builder::audits)). The area is computed at the end of an epoch or an
/// evaluation, and is not part of a [`Step`](crate::Step).
///
/// Shapes: logits or probabilities, and targets of 0 and 1, `[B, ...]`, or `[B, 1]` and `[B]`. Only the order
/// of the scores counts, so that logits and their sigmoids have the same area, except where rounding makes
/// sigmoids equal. With [`Auc::one_vs_rest`]: logits `[B, ..., classes]` with labels `[B, ...]`.
///
/// Errors: other shapes, no class.
///
/// ```
/// use unisono::{Auc, Dense, Trainer};
///
/// let builder = Trainer::builder(Dense::new(1)).metric(Auc::roc()).metric(Auc::pr());
/// ```
#[doc(alias("AUROC", "roc_auc_score"))]
#[derive(Clone, Debug)]
pub struct Auc {
    name: String,
    curve: Curve,
    classes: Option<usize>,
    ignored: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    Roc,
    Pr,
}

impl Auc {
    /// Creates the area under the ROC curve, of the true over the false positive rate by trapezoids: the
    /// chance that a label of 1 has a higher score than one of 0, where a tie counts half (scikit-learn's
    /// `roc_auc_score`, Keras's `AUC`, torchmetrics' `AUROC`). It is NaN where all labels are the same, as in
    /// scikit-learn.
    pub fn roc() -> Self {
        Self { name: "roc auc".into(), curve: Curve::Roc, classes: None, ignored: None }
    }

    /// Creates the area under the precision-recall curve as average precision: the sum over thresholds of
    /// precision times the gain in recall (scikit-learn's `average_precision_score`, torchmetrics'
    /// `AveragePrecision`; Keras's `AUC(curve="PR")` interpolates). It is NaN where there is no label of 1,
    /// as the recall is then; scikit-learn warns and gives 0.
    pub fn pr() -> Self {
        Self { name: "pr auc".into(), curve: Curve::Pr, ..Self::roc() }
    }

    /// Takes logits of `classes` classes and labels, and gives the mean over classes of the area of each
    /// class against all others, with softmax as scores (scikit-learn's `multi_class="ovr"`,
    /// `average="macro"`). The area is NaN where a class has no label. Default: logits of two classes.
    pub fn one_vs_rest(self, classes: usize) -> Self {
        Self { classes: Some(classes), ..self }
    }

    /// Sets a label that counts nowhere. Default: all labels count.
    pub fn ignore_index(self, label: i32) -> Self {
        Self { ignored: Some(label), ..self }
    }

    /// Sets the metric's name. Defaults: `roc auc` and `pr auc`.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Returns the number of scores of a label.
    fn scores(&self) -> usize {
        self.classes.unwrap_or(1)
    }
}

impl Metric for Auc {
    fn name(&self) -> &str {
        &self.name
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        match self.classes {
            Some(classes) => {
                classes_fit(classes, output, target)?;
                let labels = target.dims != output.dims;
                labels.then_some(()).ok_or_else(|| format!("needs labels for logits {output}, got {target}"))
            }
            None => like_output(output, target),
        }
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    fn counts_label(&self, label: i32) -> bool {
        self.ignored != Some(label)
    }

    /// Traces the scores of each sample, label by label, followed by its labels.
    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let (scores, labels) = match self.classes {
            Some(_) => (output.softmax(), target.to_f32()),
            None => (output.clone(), as_output(output, target)),
        };
        let flat = |x: &Var| x.reshape(&[x.ty().count()]);
        flat(&scores).concat(&[&flat(&labels)], -1)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(self)
    }
}

impl Reduction for Auc {
    fn settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn start(&self, _values: usize) -> MetricState {
        MetricState::default()
    }

    /// Keeps for each label its scores, itself and the weight.
    fn update(&self, state: &mut MetricState, sample: &SampleValues<'_>) {
        let labels = sample.values.len() / (self.scores() + 1);
        let (scores, labels) = sample.values.split_at(sample.values.len() - labels);
        for (scores, &label) in scores.chunks_exact(self.scores().max(1)).zip(labels) {
            if self.ignored.is_none_or(|ignored| label != ignored as f32) && sample.weight != 0.0 {
                state.kept.extend(scores);
                state.kept.extend([label, sample.weight as f32]);
            }
        }
    }

    fn finish(&self, state: &MetricState) -> MetricValue {
        let width = self.scores() + 2;
        let area = |class: usize| {
            let points = state.kept.chunks_exact(width).map(|kept| {
                let label = kept[width - 2];
                let positive = if self.classes.is_some() { label == class as f32 } else { label > 0.5 };
                Point { score: kept[class], positive, weight: f64::from(kept[width - 1]) }
            });
            self.curve.area(points.collect())
        };
        let areas: f64 = (0..self.scores()).map(area).sum();
        (areas / self.scores().max(1) as f64).into()
    }

    fn kind(&self) -> MetricKind {
        MetricKind::AtEnd
    }
}

/// A label with its score.
struct Point {
    score: f32,
    positive: bool,
    weight: f64,
}

impl Curve {
    /// Returns the area under the curve of all thresholds, from the highest to the lowest. It is NaN where a
    /// score is.
    fn area(self, mut points: Vec<Point>) -> f64 {
        if points.iter().any(|point| point.score.is_nan()) {
            return f64::NAN;
        }
        // The order is stable, so that sums within a tie are in sample order.
        points.sort_by(|a, b| b.score.total_cmp(&a.score));
        let weight =
            |positive: bool| points.iter().filter(|p| p.positive == positive).map(|p| p.weight).sum::<f64>();
        let (positives, negatives) = (weight(true), weight(false));
        let (mut hits, mut misses, mut area) = (0.0, 0.0, 0.0);
        for tie in points.chunk_by(|a, b| a.score == b.score) {
            let before: (f64, f64) = (hits, misses);
            for point in tie {
                *if point.positive { &mut hits } else { &mut misses } += point.weight;
            }
            area += match self {
                Self::Roc => (misses - before.1) * (before.0 + hits) / 2.0,
                // A tie without a hit has a share of 0, whatever its precision.
                Self::Pr if hits > before.0 => (hits - before.0) * (hits / (hits + misses)),
                Self::Pr => 0.0,
            };
        }
        match self {
            Self::Roc => area / (positives * negatives),
            Self::Pr => ratio(area, positives),
        }
    }
}
