//! Norms over the elements of one sample.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::functional::{group_norm, layer_norm, rms_norm};
use crate::{Context, Description, Initializer, Layer};

/// (x - mean) / sqrt(variance + eps) weight + bias over the last axis, or the last few (Ba et al. 2016; PyTorch's `LayerNorm`).
///
/// Parameters, with those axes: `weight`, ones; `bias`, zeros.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    axes: usize,
    epsilon: f32,
}

/// x / sqrt(mean of x^2 + eps) weight over the last axis, or the last few (Zhang and Sennrich 2019; PyTorch's `RMSNorm`).
///
/// Parameters, with those axes: `weight`, ones.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    axes: usize,
    epsilon: f32,
}

/// Layer norm over groups of channels of `[B, C, ...]` (Wu and He 2018; PyTorch's `GroupNorm`).
///
/// Parameters: `weight` `[C]`, ones; `bias` `[C]`, zeros.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    groups: usize,
    epsilon: f32,
}

macro_rules! over_axes {
    ($layer:ident) => {
        impl $layer {
            /// Over the last axis, with epsilon 1e-5.
            pub fn new() -> Self {
                Self { axes: 1, epsilon: 1e-5 }
            }

            /// Over the last `axes` axes.
            pub fn axes(mut self, axes: usize) -> Self {
                self.axes = axes;
                self
            }

            /// What keeps the division finite.
            pub fn epsilon(mut self, epsilon: f32) -> Self {
                self.epsilon = epsilon;
                self
            }
        }

        impl Default for $layer {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

over_axes!(LayerNorm);
over_axes!(RmsNorm);

impl GroupNorm {
    /// So many groups, with epsilon 1e-5.
    pub fn new(groups: usize) -> Self {
        Self { groups, epsilon: 1e-5 }
    }

    /// What keeps the division finite.
    pub fn epsilon(mut self, epsilon: f32) -> Self {
        self.epsilon = epsilon;
        self
    }
}

/// The last `axes` axes.
fn last_axes(layer: &str, cx: &Context, axes: usize, x: &Var) -> Option<Vec<usize>> {
    let first = x.dims().len().checked_sub(axes).filter(|_| axes > 0);
    if first.is_none() {
        cx.fail(layer, format!("{} does not have {axes} axes of features", x.ty()));
    }
    first.map(|first| x.dims()[first..].to_vec())
}

impl Layer for LayerNorm {
    fn name(&self) -> &str {
        "layer_norm"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::LayerNorm(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some(dims) = last_axes("layer_norm", cx, self.axes, x) else { return x.clone() };
        let weight = cx.parameter("weight", &dims, Initializer::Ones);
        let bias = cx.parameter("bias", &dims, Initializer::Zeros);
        layer_norm(x, self.axes, Some(&weight), Some(&bias), self.epsilon)
    }
}

impl Layer for RmsNorm {
    fn name(&self) -> &str {
        "rms_norm"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::RmsNorm(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some(dims) = last_axes("rms_norm", cx, self.axes, x) else { return x.clone() };
        let weight = cx.parameter("weight", &dims, Initializer::Ones);
        rms_norm(x, self.axes, Some(&weight), self.epsilon)
    }
}

impl Layer for GroupNorm {
    fn name(&self) -> &str {
        "group_norm"
    }

    fn description(&self) -> Option<Description> {
        Some(Description::GroupNorm(*self))
    }

    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let channels = x.dims().first().copied().unwrap_or(0);
        let weight = cx.parameter("weight", &[channels], Initializer::Ones);
        let bias = cx.parameter("bias", &[channels], Initializer::Zeros);
        group_norm(x, self.groups, Some(&weight), Some(&bias), self.epsilon)
    }
}
