//! Normalization over the elements of one sample.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::functional::{group_norm, layer_norm, rms_norm};
use super::settings::{not_negative, positive, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Layer normalization (Ba et al. 2016; PyTorch's `LayerNorm`): y = (x - mean) / sqrt(variance + epsilon)
/// weight + bias, with mean and variance over the last axis, or the last few.
///
/// Shapes: `[B, ..., F]` to the same.
///
/// Parameters: `weight` (Default: ones) and `bias` (Default: zeros), both with the axes that are normalized,
/// `[F]`.
///
/// Errors: the input has fewer axes than are normalized, or epsilon is negative or not finite.
#[doc(alias = "LayerNormalization")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    axes: usize,
    epsilon: f32,
}

/// Root mean square normalization (Zhang and Sennrich 2019; PyTorch's `RMSNorm`):
/// y = x / sqrt(mean of x^2 + epsilon) weight, with the mean over the last axis, or the last few. The epsilon
/// is 1e-5 by default; PyTorch's default is the dtype's epsilon, 1.2e-7.
///
/// Shapes: `[B, ..., F]` to the same.
///
/// Parameters: `weight` with the axes that are normalized, `[F]` (Default: ones).
///
/// Errors: the input has fewer axes than are normalized, or epsilon is negative or not finite.
#[doc(alias = "RMSNormalization")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    axes: usize,
    epsilon: f32,
}

/// Group normalization (Wu and He 2018; PyTorch's `GroupNorm`): y = (x - mean) / sqrt(variance + epsilon)
/// weight + bias, with mean and variance over each group of neighbouring channels and all their pixels.
///
/// Shapes: `[B, C, ...]` to the same.
///
/// Parameters: `weight` `[C]` (Default: ones), `bias` `[C]` (Default: zeros).
///
/// Errors: the groups do not divide the channels, or epsilon is negative or not finite.
#[doc(alias = "GroupNormalization")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    groups: usize,
    epsilon: f32,
}

/// Instance normalization (Ulyanov et al. 2016; PyTorch's `InstanceNorm1d` and `InstanceNorm2d`): y = (x -
/// mean) / sqrt(variance + epsilon), with mean and variance over the pixels of each channel of each
/// sample. With [`affine`](Self::affine), y is multiplied by `weight`, and `bias` is added. There are no
/// running statistics.
///
/// Shapes: `[B, C, ...]` to the same.
///
/// Parameters: none, or, if it is affine, `weight` `[C]` (Default: ones) and `bias` `[C]` (Default: zeros).
///
/// Errors: the input has no axis behind that of channels, or epsilon is negative or not finite.
#[doc(alias("InstanceNorm1d", "InstanceNorm2d"))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceNorm {
    affine: bool,
    epsilon: f32,
}

macro_rules! over_axes {
    ($layer:ident) => {
        impl $layer {
            /// Creates a layer that normalizes over the last axis, with epsilon 1e-5.
            pub fn new() -> Self {
                Self { axes: 1, epsilon: 1e-5 }
            }

            /// Sets over how many of the last axes it normalizes. Default: 1.
            pub fn axes(mut self, axes: usize) -> Self {
                self.axes = axes;
                self
            }

            /// Sets what is added under the root, which keeps the division finite. Default: 1e-5.
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
    /// Creates a layer with this number of groups and epsilon 1e-5.
    pub fn new(groups: usize) -> Self {
        Self { groups, epsilon: 1e-5 }
    }

    /// Sets what is added under the root, which keeps the division finite. Default: 1e-5.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }
}

impl InstanceNorm {
    /// Creates a layer without parameters, with epsilon 1e-5.
    pub fn new() -> Self {
        Self { affine: false, epsilon: 1e-5 }
    }

    /// Gives each channel a scale and a bias, which are learned. Default: there are none (as in PyTorch).
    pub fn affine(self) -> Self {
        Self { affine: true, ..self }
    }

    /// Sets what is added under the root, which keeps the division finite. Default: 1e-5.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }
}

impl Default for InstanceNorm {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the lengths of the last `axes` axes. Fewer axes are an error of the layer.
fn last_axes(layer: &str, cx: &Context, axes: usize, x: &Var) -> Option<Vec<usize>> {
    let first = x.dims().len().checked_sub(axes).filter(|_| axes > 0);
    if first.is_none() {
        cx.fail(layer, format!("{} does not have {axes} axes of features", x.ty()));
    }
    first.map(|first| x.dims()[first..].to_vec())
}

impl Forward for LayerNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some(dims) = last_axes(self.name(), cx, self.axes, x) else { return x.clone() };
        if !valid(self.name(), cx, [not_negative("epsilon", self.epsilon)]) {
            return x.clone();
        }
        if dims.iter().product::<usize>() == 1 {
            cx.note(&format!(
                "a layer_norm of {}, whose last axis has one number: it gives its bias",
                x.ty()
            ));
        }
        let weight = cx.parameter("weight", &dims, Initializer::Ones);
        let bias = cx.parameter("bias", &dims, Initializer::Zeros);
        layer_norm(x, self.axes, Some(&weight), Some(&bias), self.epsilon)
    }
}

impl Forward for RmsNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let Some(dims) = last_axes(self.name(), cx, self.axes, x) else { return x.clone() };
        if !valid(self.name(), cx, [not_negative("epsilon", self.epsilon)]) {
            return x.clone();
        }
        let weight = cx.parameter("weight", &dims, Initializer::Ones);
        rms_norm(x, self.axes, Some(&weight), self.epsilon)
    }
}

impl Forward for GroupNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let settings = [positive("groups", self.groups), not_negative("epsilon", self.epsilon)];
        if !valid(self.name(), cx, settings) {
            return x.clone();
        }
        let channels = x.dims().first().copied().unwrap_or(0);
        let weight = cx.parameter("weight", &[channels], Initializer::Ones);
        let bias = cx.parameter("bias", &[channels], Initializer::Zeros);
        group_norm(x, self.groups, Some(&weight), Some(&bias), self.epsilon)
    }
}

impl Forward for InstanceNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let [channels, _, ..] = *x.dims() else {
            cx.fail(self.name(), format!("needs channels of pixels, got {}", x.ty()));
            return x.clone();
        };
        if !valid(self.name(), cx, [not_negative("epsilon", self.epsilon)]) {
            return x.clone();
        }
        if x.dims()[1..].iter().all(|&extent| extent == 1) {
            cx.note(&format!(
                "an instance_norm of {}, whose channels have one number each: it gives zeros",
                x.ty()
            ));
        }
        let weight = self.affine.then(|| cx.parameter("weight", &[channels], Initializer::Ones));
        let bias = self.affine.then(|| cx.parameter("bias", &[channels], Initializer::Zeros));
        group_norm(x, channels, weight.as_ref(), bias.as_ref(), self.epsilon)
    }
}
