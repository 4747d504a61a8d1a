use unisono_data::{Field, Values};
use unisono_graph::{DType, Type, Var};

use super::{Loss, distributions, mean_of_sample, other_target};

/// Cross-entropy of the softmax of logits (PyTorch's `CrossEntropyLoss`, Keras's
/// `SparseCategoricalCrossentropy(from_logits=True)`): -ln softmax(x) at the label, the mean over a sample's
/// labels.
///
/// Shapes: logits `[B, ..., classes]` and labels `[B, ...]` of i32 in 0..classes to `[B]`; with
/// [`probabilities`](Self::probabilities), targets `[B, ..., classes]` of f32.
///
/// Errors: logits without an axis of classes, or of a single class, a smoothing outside of [0, 1), a label
/// that is no class.
///
/// ```
/// use unisono::CrossEntropy;
///
/// let loss = CrossEntropy::new().label_smoothing(0.1).ignore_index(-100);
/// ```
#[doc(alias("CrossEntropyLoss", "SparseCategoricalCrossentropy"))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    smoothing: f32,
    ignored: Option<i32>,
    probabilities: bool,
}

impl CrossEntropy {
    /// Creates the loss for labels, without smoothing and without an ignored label.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the label smoothing: the fraction of the target that is spread evenly over all classes, 0 <=
    /// smoothing < 1 (Szegedy et al. 2016). Default: 0.
    pub fn label_smoothing(self, smoothing: f32) -> Self {
        Self { smoothing, ..self }
    }

    /// Sets a label that does not count, neither in the sum nor in its divisor. Default: none (PyTorch's is
    /// -100).
    ///
    /// The loss of a sample is then the mean over its other labels, and the sample counts as many times as it
    /// has such labels. The loss of a batch is therefore the mean over all of them. Metrics do not follow
    /// this setting; they have their own, such as [`Accuracy::ignore_index`](crate::Accuracy::ignore_index).
    pub fn ignore_index(self, label: i32) -> Self {
        Self { ignored: Some(label), ..self }
    }

    /// Takes targets that are probabilities, `[B, ..., classes]` (Keras's `CategoricalCrossentropy`).
    /// Default: labels.
    #[doc(alias = "CategoricalCrossentropy")]
    pub fn probabilities(self) -> Self {
        Self { probabilities: true, ..self }
    }

    /// Traces the loss of each label, also of those that are ignored.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let logs = output.log_softmax();
        let expected = match (self.probabilities, self.ignored) {
            (true, _) => (&logs * target).sum(&[-1]),
            (false, None) => logs.take(target),
            (false, Some(_)) => target.tape().with_any_index(|| logs.take(target)),
        };
        if self.smoothing == 0.0 {
            -expected
        } else {
            -(expected * (1.0 - self.smoothing) + logs.mean(&[-1]) * self.smoothing)
        }
    }

    /// Traces 1 where a label counts and 0 where it is ignored. Returns `None` if no label is ignored.
    fn counts(&self, target: &Var) -> Option<Var> {
        let label = self.ignored.filter(|_| !self.probabilities)?;
        Some(1.0 - target.to_f32().eq_mask(&target.tape().constant(label as f32)))
    }
}

impl Loss for CrossEntropy {
    fn name(&self) -> &str {
        "cross-entropy"
    }

    fn activation(&self) -> Option<&'static str> {
        Some("softmax")
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let expected = self.target(output)?;
        let problem = || other_target(output, &expected, target);
        match &expected == target {
            true => Ok(()),
            // One-hot labels, for example.
            false if target == output => {
                Err(format!("{}: CrossEntropy::probabilities takes such targets", problem()))
            }
            false if output.dims.get(1..) == Some(&target.dims) && !target.dims.is_empty() => {
                Err(format!("{}: the classes are the output's last axis (permute)", problem()))
            }
            false => Err(problem()),
        }
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(format!("label smoothing {} is not in [0, 1)", self.smoothing));
        }
        match output.dims.split_last() {
            Some((1, _)) => Err(format!(
                "{output} has one logit, whose softmax is always 1: BinaryCrossEntropyWithLogits is for that"
            )),
            Some(_) if self.probabilities => Ok(output.clone()),
            Some((_, rest)) => Ok(output.with_dims(rest).of(DType::I32)),
            None => Err(format!("logits need an axis of classes, the model gives {output}")),
        }
    }

    fn ignored_label(&self) -> Option<i32> {
        self.ignored.filter(|_| !self.probabilities)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let loss = self.each(output, target);
        match (self.counts(target), self.weight(target)) {
            (Some(counts), Some(count)) => {
                let sum = counts.select(&loss, &loss.tape().constant(0.0)).flatten().sum(&[-1]);
                sum / count.maximum(&count.tape().constant(1.0))
            }
            _ => mean_of_sample(&loss),
        }
    }

    fn weight(&self, target: &Var) -> Option<Var> {
        Some(self.counts(target)?.flatten().sum(&[-1]))
    }

    fn per_label(&self, output: &Var, target: &Var) -> Option<Var> {
        Some(self.each(output, target))
    }

    fn label_weight(&self, target: &Var) -> Option<Var> {
        self.counts(target)
    }

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        let classes = output.dims.last().copied().unwrap_or(0);
        let per_sample = (output.count() / classes.max(1)).max(1);
        let labels = match &targets.values {
            Values::I32(labels) => labels,
            Values::F32(all) if self.probabilities => return distributions(all, classes, per_sample),
            Values::F32(_) => return Ok(()),
        };
        let bad = |l: &i32| (*l < 0 || *l as usize >= classes) && Some(*l) != self.ignored;
        match labels.iter().position(bad) {
            Some(at) if labels[at] as usize == classes => Err((
                at / per_sample,
                format!(
                    "label {classes} is not in 0..{classes}: labels count from 0, so subtract 1 if these begin at 1"
                ),
            )),
            Some(at) => Err((at / per_sample, format!("label {} is not in 0..{classes}", labels[at]))),
            None => Ok(()),
        }
    }
}
