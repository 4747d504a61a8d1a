use unisono_data::Field;
use unisono_graph::{Type, Var};

use super::Loss;
use super::binary::{as_output, binary_target, within};

/// Soft Dice loss (Milletari et al. 2016; MONAI's `DiceLoss(sigmoid=True)`). With the probabilities p and the
/// targets y of a sample, it is `1 - (2 sum(p y) + smooth) / (sum(p) + sum(y) + smooth)`. The sums run over
/// all elements of the sample. Keras's `Dice` sums over the whole batch instead, and adds nothing to the
/// numerator.
///
/// The output is logits x, p = sigmoid(x); with [`probabilities`](Self::probabilities) it is p itself.
///
/// Shapes: outputs and targets `[B, ...]` to `[B]`, with y in [0, 1], of f32 or i32. A last axis of length 1
/// may be missing on one side.
///
/// Errors: targets of other shapes, a target outside of [0, 1], smooth is not a finite number above 0.
#[derive(Clone, Copy, Debug)]
pub struct Dice {
    smooth: f32,
    probabilities: bool,
}

impl Dice {
    /// Creates the loss of logits, with smooth 1.
    pub fn new() -> Self {
        Self { smooth: 1.0, probabilities: false }
    }

    /// Sets the term that is added to numerator and denominator. It keeps the division finite for samples
    /// without a target of 1. It must be above 0. Default: 1.
    pub fn smooth(self, smooth: f32) -> Self {
        Self { smooth, ..self }
    }

    /// Takes outputs that are probabilities. Default: logits.
    pub fn probabilities(self) -> Self {
        Self { probabilities: true, ..self }
    }
}

impl Default for Dice {
    fn default() -> Self {
        Self::new()
    }
}

impl Loss for Dice {
    fn name(&self) -> &str {
        "dice"
    }

    fn activation(&self) -> Option<&'static str> {
        (!self.probabilities).then_some("sigmoid")
    }

    fn takes_probabilities(&self) -> bool {
        self.probabilities
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        let valid = self.smooth > 0.0 && self.smooth.is_finite();
        valid
            .then(|| output.clone())
            .ok_or_else(|| format!("smooth {} is not a finite number above 0", self.smooth))
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let y = as_output(output, target);
        let p = if self.probabilities { output.clone() } else { output.sigmoid() };
        let common = (&p * &y).sum_all();
        let size = p.sum_all() + y.sum_all();
        1.0 - (common * 2.0 + self.smooth) / (size + self.smooth)
    }

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(output, targets, "in [0, 1]", |y| (0.0..=1.0).contains(&y))
    }
}
