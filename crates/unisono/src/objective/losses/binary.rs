//! Losses of logits that are each a yes or a no.

use unisono_data::{Field, Values};
use unisono_graph::{DType, Type, Var};

use super::{Loss, mean_of_labels, mean_of_sample, other_target};

/// Binary cross-entropy of the sigmoids of logits (PyTorch's `BCEWithLogitsLoss`, Keras's
/// `BinaryCrossentropy(from_logits=True)`): the mean over a sample's elements of max(x, 0) - x y + ln(1 +
/// e^-|x|), which is finite for all logits.
///
/// Shapes: logits x and targets y `[B, ...]` to `[B]`, with y in [0, 1], of f32 or i32. A last axis of
/// length 1 may be missing on one side: labels `[B]` fit logits `[B, 1]`.
///
/// Errors: targets of other shapes, a target outside of [0, 1].
#[doc(alias = "BCEWithLogitsLoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryCrossEntropyWithLogits;

/// Focal loss of the sigmoids of logits (Lin et al. 2017; torchvision's `sigmoid_focal_loss`, Keras's
/// `BinaryFocalCrossentropy(from_logits=True, apply_class_balancing=True)`): binary cross-entropy, in which
/// elements that are right already weigh less.
///
/// With p = sigmoid(x) and the share q = p (1 - y) + (1 - p) y that is wrong, it is the mean over a sample's
/// elements of (alpha y + (1 - alpha) (1 - y)) q^gamma times the binary cross-entropy of x and y.
///
/// Shapes: those of [`BinaryCrossEntropyWithLogits`].
///
/// Errors: those of [`BinaryCrossEntropyWithLogits`], alpha is not in [0, 1], gamma is negative or not
/// finite.
#[doc(alias("BinaryFocalCrossentropy", "sigmoid_focal_loss"))]
#[derive(Clone, Copy, Debug)]
pub struct BinaryFocal {
    alpha: Option<f32>,
    gamma: f32,
}

impl BinaryFocal {
    /// Creates the loss with the paper's settings: gamma 2 and alpha 0.25.
    pub fn new() -> Self {
        Self { alpha: Some(0.25), gamma: 2.0 }
    }

    /// Sets the power gamma. The higher it is, the less do elements count that are almost right. Default: 2.
    /// With 0 all elements count the same.
    pub fn gamma(self, gamma: f32) -> Self {
        Self { gamma, ..self }
    }

    /// Sets the weight of targets of 1. Targets of 0 have the weight 1 - alpha. Default: 0.25.
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha: Some(alpha), ..self }
    }

    /// Gives all targets the weight 1 (torchvision's `alpha=-1`). Default: targets of 1 have 0.25, those of 0
    /// have 0.75.
    pub fn no_alpha(self) -> Self {
        Self { alpha: None, ..self }
    }
}

impl Default for BinaryFocal {
    fn default() -> Self {
        Self::new()
    }
}

impl BinaryCrossEntropyWithLogits {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        cross_entropy(output, &as_output(output, target))
    }
}

impl Loss for BinaryCrossEntropyWithLogits {
    fn name(&self) -> &str {
        "binary cross-entropy"
    }

    fn activation(&self) -> Option<&'static str> {
        Some("sigmoid")
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    mean_of_labels!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(output, targets, "in [0, 1]", |y| (0.0..=1.0).contains(&y))
    }
}

impl BinaryFocal {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let y = as_output(output, target);
        let (p, no) = (output.sigmoid(), 1.0 - &y);
        let wrong = &p * &no + (1.0 - &p) * &y;
        // Where nothing is wrong, the logarithm that a power may need stays finite.
        let least = output.tape().constant(1e-30);
        let mut loss = cross_entropy(output, &y) * wrong.maximum(&least).pow(self.gamma);
        if let Some(alpha) = self.alpha {
            loss = loss * (&y * alpha + &no * (1.0 - alpha));
        }
        loss
    }
}

impl Loss for BinaryFocal {
    fn name(&self) -> &str {
        "binary focal loss"
    }

    fn activation(&self) -> Option<&'static str> {
        Some("sigmoid")
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        if let Some(alpha) = self.alpha.filter(|alpha| !(0.0..=1.0).contains(alpha)) {
            return Err(format!("alpha {alpha} is not in [0, 1]"));
        }
        let valid = self.gamma >= 0.0 && self.gamma.is_finite();
        valid.then(|| output.clone()).ok_or_else(|| format!("gamma {} is negative or not finite", self.gamma))
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    mean_of_labels!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(output, targets, "in [0, 1]", |y| (0.0..=1.0).contains(&y))
    }
}

/// Traces the binary cross-entropy of each element.
fn cross_entropy(output: &Var, target: &Var) -> Var {
    // It is not relu, so that the gradient at a logit of exactly 0 is 1/2 - y.
    let positive = output.maximum(&output.tape().constant(0.0));
    let rest = ((-output.abs()).exp() + 1.0).log();
    positive - output * target + rest
}

/// Checks the targets of a binary loss, see [`fits_binary`] and [`Loss::accepts`].
pub(super) fn binary_target(loss: &impl Loss, output: &Type, target: &Type) -> Result<(), String> {
    let expected = loss.target(output)?;
    if fits_binary(&expected, target) { Ok(()) } else { Err(other_target(output, &expected, target)) }
}

/// Returns whether binary targets fit logits: f32 or i32 of the same shape, in which a last axis of length 1
/// may be missing on one side.
pub(crate) fn fits_binary(output: &Type, target: &Type) -> bool {
    fn without_last_one(dims: &[usize]) -> &[usize] {
        if let [rest @ .., 1] = dims { rest } else { dims }
    }
    let shapes = output.dims == target.dims
        || output.dims.len() != target.dims.len()
            && without_last_one(&output.dims) == without_last_one(&target.dims);
    shapes && output.lead == target.lead && matches!(target.dtype, DType::F32 | DType::I32)
}

/// Returns binary targets as f32 in the shape of the output.
pub(crate) fn as_output(output: &Var, target: &Var) -> Var {
    let target = target.to_f32();
    if target.dims() == output.dims() { target } else { target.reshape(output.dims()) }
}

/// Checks that all targets are such as `good` accepts, which `what` says in words.
pub(super) fn within(
    output: &Type,
    targets: &Field,
    what: &str,
    good: impl Fn(f32) -> bool,
) -> Result<(), (usize, String)> {
    let bad = match &targets.values {
        Values::F32(values) => values.iter().position(|&y| !good(y)).map(|at| (at, values[at].to_string())),
        Values::I32(values) => {
            values.iter().position(|&y| !good(y as f32)).map(|at| (at, values[at].to_string()))
        }
    };
    match bad {
        Some((at, value)) => Err((at / output.count().max(1), format!("target {value} is not {what}"))),
        None => Ok(()),
    }
}
