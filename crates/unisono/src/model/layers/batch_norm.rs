use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::functional::{batch_norm, batch_norm_with};
use super::settings::{not_negative, share, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// The largest momentum that is not noted: running statistics that follow single batches are rarely meant.
const MOST_LIKELY: f32 = 0.5;

/// Batch normalization of each channel (Ioffe and Szegedy 2015; PyTorch's `BatchNorm1d` and `BatchNorm2d`):
/// y = (x - mean) / sqrt(variance + epsilon) weight + bias.
///
/// In training, mean and variance are those of the whole global batch, on any number of replicas (PyTorch's
/// `SyncBatchNorm`). In evaluation and prediction, and where
/// [`Builder::freeze_statistics`](crate::Builder::freeze_statistics) accepts `running_mean`, they are the
/// running ones. Each training step moves the running ones towards the batch's mean and unbiased variance, by
/// the fraction `momentum`, once for all replicas.
///
/// Shapes: `[B, C, ...]` to the same, for example `[B, C]` or `[B, C, H, W]`.
///
/// Parameters: `weight` `[C]` (Default: ones), `bias` `[C]` (Default: zeros). Statistics: `running_mean`
/// `[C]`, which starts as zeros, and `running_var` `[C]`, which starts as ones.
///
/// Errors: the input has no axis of channels, epsilon is negative or not finite, or the momentum is not in
/// [0, 1].
#[doc(alias("BatchNorm1d", "BatchNorm2d", "BatchNormalization", "SyncBatchNorm"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    epsilon: f32,
    momentum: f32,
}

impl BatchNorm {
    /// Creates a layer with PyTorch's defaults: epsilon 1e-5 and momentum 0.1.
    pub fn new() -> Self {
        Self { epsilon: 1e-5, momentum: 0.1 }
    }

    /// Sets the term that is added to the variance for numerical stability. Default: 1e-5.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets the weight of the newest batch in the running statistics. Default: 0.1. This is PyTorch's
    /// momentum; Keras's is 1 minus this.
    pub fn momentum(self, momentum: f32) -> Self {
        Self { momentum, ..self }
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self::new()
    }
}

impl Forward for BatchNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let (Some(&channels), Lead::Sample) = (x.dims().first(), x.ty().lead) else {
            cx.fail(self.name(), format!("needs samples with an axis of channels, got {}", x.ty()));
            return x.clone();
        };
        let settings = [not_negative("epsilon", self.epsilon), share("momentum", self.momentum)];
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        if self.momentum > MOST_LIKELY {
            cx.note(&format!(
                "a batch_norm whose momentum {0} is the share of the new batch, as in PyTorch: Keras's {0} is {1:.3} here",
                self.momentum,
                1.0 - self.momentum
            ));
        }
        if self.momentum == 0.0 {
            cx.note(
                "a batch_norm of momentum 0, whose running statistics never change: predictions use 0 and 1",
            );
        }
        let weight = cx.parameter("weight", &[channels], Initializer::Ones);
        let bias = cx.parameter("bias", &[channels], Initializer::Zeros);
        let mean = cx.statistic("running_mean", &[channels], Initializer::Zeros);
        let variance = cx.statistic("running_var", &[channels], Initializer::Ones);
        if !cx.is_training() || cx.is_statistic_frozen("running_mean") {
            return batch_norm_with(x, &mean, &variance, Some(&weight), Some(&bias), self.epsilon);
        }
        let normed = batch_norm(x, Some(&weight), Some(&bias), self.epsilon);
        let (new_mean, new_variance) = normed.running(&mean, &variance, self.momentum);
        cx.replace(&mean, &new_mean);
        cx.replace(&variance, &new_variance);
        normed.y
    }
}
