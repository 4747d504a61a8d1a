use unisono_graph::{Type, Var};

use super::{Loss, mean_of_sample};

/// Cross-entropy of sigmoids of logits with targets in [0, 1] of the same shape, the mean over a sample's elements (PyTorch's
/// `BCEWithLogitsLoss`, Keras's `BinaryCrossentropy(from_logits=True)`).
///
/// max(x, 0) - x y + ln(1 + e^-|x|): finite for all logits.
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
        // Not relu: at a logit of exactly 0 the gradient is 1/2 - y.
        let positive = output.maximum(&output.tape().constant(0.0));
        let rest = ((-output.abs()).exp() + 1.0).log();
        mean_of_sample(&(positive - output * target + rest))
    }
}
