//! Top-k accuracy.

use unisono_graph::ops::Iota;
use unisono_graph::{DType, Type, Var};

use super::accuracy::{of_labels, reduction_of_labels};
use super::{Better, Metric, Reduction};

/// Top-k accuracy: the share of labels whose logit is one of the k largest (Keras's
/// `SparseTopKCategoricalAccuracy`, scikit-learn's `top_k_accuracy_score`, torchmetrics'
/// `MulticlassAccuracy(top_k=k, average="micro")`). If logits are equal, the first counts as the largest, so
/// that k = 1 is [`Accuracy`](struct@crate::Accuracy); Keras counts a tie as right. A label that is no class
/// counts as wrong. It is the mean over samples of the share of each, with the samples' weights.
///
/// Shapes: logits `[B, ..., classes]` with i32 labels `[B, ...]`. Errors: other shapes, k = 0, or k above the
/// number of classes.
///
/// ```
/// use unisono::{Dense, TopKAccuracy, Trainer};
///
/// let builder = Trainer::builder(Dense::new(1000)).metric(TopKAccuracy::new(5));
/// ```
#[doc(alias("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy"))]
#[derive(Clone, Debug)]
pub struct TopKAccuracy {
    name: String,
    k: usize,
    ignored: Option<i32>,
}

impl TopKAccuracy {
    /// Creates the share of labels among the `k` largest logits. Its name is such as `top-5 accuracy`.
    pub fn new(k: usize) -> Self {
        Self { name: format!("top-{k} accuracy"), k, ignored: None }
    }

    /// Sets the label that counts neither as right nor as wrong, as
    /// [`Accuracy::ignore_index`](crate::Accuracy::ignore_index) does. Default: all labels count.
    pub fn ignore_index(self, label: i32) -> Self {
        Self { ignored: Some(label), ..self }
    }
}

impl Metric for TopKAccuracy {
    fn name(&self) -> &str {
        &self.name
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        match output.dims.split_last() {
            Some((&classes, _)) if !(1..=classes).contains(&self.k) => {
                Err(format!("k = {} is not in 1..={classes}, the number of classes", self.k))
            }
            Some((_, rest)) if rest == target.dims && target.dtype == DType::I32 => Ok(()),
            _ => Err(format!("needs i32 labels for logits {output}, got {target}")),
        }
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }

    /// Counts the logits behind that of the label. NaN is behind nothing, so that its label is no hit.
    fn takes_largest(&self) -> bool {
        true
    }

    fn counts_label(&self, label: i32) -> bool {
        self.ignored != Some(label)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let tape = output.tape();
        let classes = output.dims().last().copied().unwrap_or(1);
        let own = tape.with_any_index(|| output.take(target)).add_axis();
        let numbers = tape.apply(Iota { dims: vec![classes], axis: 0 }, &[]).to_f32();
        let labels = target.to_f32();
        let later = numbers.greater(&labels.add_axis());
        let behind = own.greater(output).maximum(&output.eq_mask(&own).minimum(&later));
        let number = |x: f32| tape.constant(x);
        let least = (classes - self.k.min(classes)) as f32 - 0.5;
        let hits = behind.sum(&[-1]).greater(&number(least));
        let is_class = labels.greater(&number(-0.5)).minimum(&number(classes as f32 - 0.5).greater(&labels));
        of_labels(&hits.minimum(&is_class), &labels, self.ignored)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        reduction_of_labels(self.ignored)
    }
}
