//! Losses of scores that are to be on the right side by a margin.

use unisono_data::Field;
use unisono_graph::{DType, Type, Var};

use super::binary::{as_output, binary_target, within};
use super::{CrossEntropy, Loss, mean_of_labels, mean_of_sample};

/// Hinge loss of scores (Keras's `Hinge`): the mean over a sample's elements of max(margin - x y, 0). With
/// [`squared`](Self::squared) it is the mean of the squares (Keras's `SquaredHinge`).
///
/// Shapes: scores x and targets y `[B, ...]` to `[B]`, with y -1 or 1, of f32 or i32. A last axis of length 1
/// may be missing on one side: labels `[B]` fit scores `[B, 1]`.
///
/// Errors: targets of other shapes, a target other than -1 and 1, a margin that is not a finite number
/// above 0.
#[derive(Clone, Copy, Debug)]
pub struct Hinge {
    margin: f32,
    squared: bool,
}

/// Multi-class hinge loss (Crammer and Singer 2001; PyTorch's `MultiMarginLoss`): the mean over the
/// classes of max(margin - x at the label + x, 0), in which the label's own class counts as 0. With
/// [`squared`](Self::squared) it is the mean of the squares (PyTorch's `p=2`). The mean over a sample's
/// labels follows.
///
/// Shapes: scores `[B, ..., classes]` and labels `[B, ...]` of i32 in 0..classes to `[B]`.
///
/// Errors: scores without an axis of classes, a label that is no class, a margin that is not a finite number
/// above 0.
#[doc(alias = "MultiMarginLoss")]
#[derive(Clone, Copy, Debug)]
pub struct MultiMargin {
    margin: f32,
    squared: bool,
}

macro_rules! margins {
    ($loss:ident) => {
        impl $loss {
            /// Creates the loss with margin 1, without squares.
            pub fn new() -> Self {
                Self { margin: 1.0, squared: false }
            }

            /// Sets by how much a score has to be on the right side, which must be above 0. Default: 1.
            pub fn margin(mut self, margin: f32) -> Self {
                self.margin = margin;
                self
            }

            /// Takes the square of what is missing. Default: what is missing itself.
            pub fn squared(mut self) -> Self {
                self.squared = true;
                self
            }

            /// Traces the loss of what is missing.
            fn of(&self, missing: &Var) -> Var {
                let missing = missing.relu();
                if self.squared { missing.square() } else { missing }
            }
        }

        impl Default for $loss {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

margins!(Hinge);
margins!(MultiMargin);

impl Hinge {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        self.of(&(self.margin - output * as_output(output, target)))
    }
}

impl Loss for Hinge {
    fn name(&self) -> &str {
        "hinge"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("margin", self.margin)?;
        Ok(output.clone())
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        binary_target(self, output, target)
    }

    mean_of_labels!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        within(output, targets, "-1 or 1", |y| y.abs() == 1.0)
    }
}

impl MultiMargin {
    /// Traces the loss of each label.
    fn each(&self, output: &Var, target: &Var) -> Var {
        let classes = output.dims().last().copied().unwrap_or(1);
        let right = output.take(target).add_axis();
        let each = self.of(&(output - right + self.margin));
        let others = target.one_hot(classes).select(&output.tape().constant(0.0), &each);
        others.mean(&[-1])
    }
}

impl Loss for MultiMargin {
    fn name(&self) -> &str {
        "multi-class hinge"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        positive("margin", self.margin)?;
        match output.dims.split_last() {
            Some((_, rest)) => Ok(output.with_dims(rest).of(DType::I32)),
            None => Err(format!("scores need an axis of classes, the model gives {output}")),
        }
    }

    mean_of_labels!();

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        CrossEntropy::new().check(output, targets)
    }
}

/// Checks a setting that must be a finite number above 0.
pub(super) fn positive(setting: &str, value: f32) -> Result<(), String> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!("{setting} {value} is not a finite number above 0"))
}
