use unisono_graph::{Type, Var};

use super::{Loss, mean_of_sample};

/// Binary cross-entropy of the sigmoids of logits (PyTorch's `BCEWithLogitsLoss`, Keras's
/// `BinaryCrossentropy(from_logits=True)`): the mean over a sample's elements of max(x, 0) - x y + ln(1 +
/// e^-|x|), which is finite for all logits.
///
/// Shapes: logits x and targets y `[B, ...]`, with y in [0, 1], to `[B]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryCrossEntropyWithLogits;

impl Loss for BinaryCrossEntropyWithLogits {
    fn name(&self) -> &str {
        "binary cross-entropy"
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Ok(output.clone())
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        // It is not relu, so that the gradient at a logit of exactly 0 is 1/2 - y.
        let positive = output.maximum(&output.tape().constant(0.0));
        let rest = ((-output.abs()).exp() + 1.0).log();
        mean_of_sample(&(positive - output * target + rest))
    }
}
