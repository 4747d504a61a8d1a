use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::settings::{finite, not_negative, positive, valid};
use crate::model::{Context, Forward, Layer};

/// Local response normalization across channels (Krizhevsky et al. 2012, AlexNet; PyTorch's
/// `LocalResponseNorm`): y = x / (k + alpha mean(x^2))^beta, where the mean is over `size` neighbouring
/// channels. Beyond the first and the last channel, zeros are counted.
///
/// Shapes: `[B, C, ...]` to the same. It has no parameters.
///
/// Errors: the size is 0, alpha is negative, k is not above 0, a setting is not finite, or the input has no
/// channels.
#[doc(alias = "LRN")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalResponseNorm {
    size: usize,
    alpha: f32,
    beta: f32,
    k: f32,
}

impl LocalResponseNorm {
    /// Creates a layer over this many neighbouring channels, with PyTorch's settings: alpha 1e-4, beta 0.75
    /// and k 1.
    pub fn new(size: usize) -> Self {
        Self { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    /// Sets what the mean of the squares is multiplied by. Default: 1e-4.
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Sets the power. Default: 0.75.
    pub fn beta(self, beta: f32) -> Self {
        Self { beta, ..self }
    }

    /// Sets what is added to the mean of the squares, which must be above 0. Default: 1.
    pub fn k(self, k: f32) -> Self {
        Self { k, ..self }
    }
}

impl Forward for LocalResponseNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Self { size, alpha, beta, k } = *self;
        let above =
            (!(k.is_finite() && k > 0.0)).then(|| format!("k is {k}, and must be finite and above 0"));
        let settings = [positive("size", size), not_negative("alpha", alpha), finite("beta", beta), above];
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        let (Some(&channels), Lead::Sample) = (x.dims().first(), x.ty().lead) else {
            cx.fail(self.name(), format!("needs samples with an axis of channels, got {}", x.ty()));
            return x.clone();
        };
        // Neighbours farther away than there are channels are zeros.
        let [before, after] = [size / 2, (size - 1) / 2].map(|side| side.min(channels));
        let rank = x.dims().len();
        let sides = |side: usize| std::iter::once(side).chain(vec![0; rank - 1]).collect::<Vec<_>>();
        let squares = x.square().pad(&sides(before), &sides(after));
        let at = |first: usize| squares.slice(-(rank as isize), first..first + channels);
        let sum = (1..=before + after).fold(at(0), |sum, first| sum + at(first));
        x / (sum * (alpha / size as f32) + k).pow(beta)
    }
}
