use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::functional::{batch_norm, batch_norm_with};
use crate::{Context, Description, Initializer, Layer};

/// Batch norm over `[B, C]` or `[B, C, H, W]`: (x - mean) / sqrt(variance + eps) weight + bias for each channel (Ioffe and
/// Szegedy 2015; PyTorch's `BatchNorm1d` and `BatchNorm2d`).
///
/// In training, mean and variance are those of the whole global batch, whatever replicas its samples are on; otherwise they are
/// the running ones.
///
/// Parameters: `weight` `[C]`, ones; `bias` `[C]`, zeros. Statistics: `running_mean` `[C]`, from zeros, and `running_var` `[C]`,
/// unbiased, from ones; each step moves them by the share `momentum`, once for all replicas.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    epsilon: f32,
    momentum: f32,
}

impl BatchNorm {
    /// PyTorch's defaults: epsilon 1e-5, momentum 0.1.
    pub fn new() -> Self {
        Self { epsilon: 1e-5, momentum: 0.1 }
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// The share of a step in the running statistics, as PyTorch counts it; Keras's momentum is 1 less this.
    pub fn momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer for BatchNorm {
    fn name(&self) -> &str {
        "batch_norm"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::BatchNorm(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let (Some(&channels), Lead::Sample) = (x.dims().first(), x.ty().lead) else {
            cx.fail("batch_norm", format!("needs samples with an axis of channels, got {}", x.ty()));
            return x.clone();
        };
        let weight = cx.parameter("weight", &[channels], Initializer::Ones);
        let bias = cx.parameter("bias", &[channels], Initializer::Zeros);
        let mean = cx.statistic("running_mean", &[channels], Initializer::Zeros);
        let variance = cx.statistic("running_var", &[channels], Initializer::Ones);
        if !cx.is_training() {
            return batch_norm_with(x, &mean, &variance, Some(&weight), Some(&bias), self.epsilon);
        }
        let normed = batch_norm(x, Some(&weight), Some(&bias), self.epsilon);
        let (new_mean, new_variance) = normed.running(&mean, &variance, self.momentum);
        cx.replace(&mean, &new_mean);
        cx.replace(&variance, &new_variance);
        normed.y
    }
}
