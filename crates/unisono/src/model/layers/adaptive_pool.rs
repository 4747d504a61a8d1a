//! Pooling to a size that the result has, whatever the input's. The layers have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv1d::{as_row, from_row, sequence};
use super::conv2d::image;
use super::functional::{adaptive_avg_pool2d, adaptive_max_pool2d};
use super::resample::sides;
use super::settings::valid;
use super::size::Size;
use crate::model::{Context, Forward, Layer};

/// Adaptive average pooling to a size (PyTorch's `AdaptiveAvgPool2d`; Keras's `AdaptiveAveragePooling2D` with
/// `data_format="channels_first"`): output row i is the mean of the input's rows from H i / h, rounded down,
/// to H (i + 1) / h, rounded up, and columns likewise.
///
/// Shapes: `[B, C, H, W]` to `[B, C, h, w]`. It has no parameters.
///
/// Errors: a side is 0 or above 1,024, the input is not a batch of images with pixels.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveAvgPool2d {
    size: [usize; 2],
}

/// Adaptive max pooling to a size (PyTorch's `AdaptiveMaxPool2d`; Keras's `AdaptiveMaxPooling2D` with
/// `data_format="channels_first"`): output row i is the maximum of the input's rows from H i / h, rounded
/// down, to H (i + 1) / h, rounded up, and columns likewise. Equal largest values share the gradient: evenly,
/// as in [`MaxPool2d`](super::MaxPool2d), where the sizes divide; else the columns of a window that hold one
/// share it evenly, and each column's pixels share its part.
///
/// Shapes: `[B, C, H, W]` to `[B, C, h, w]`. It has no parameters.
///
/// Errors: a side is 0 or above 1,024, the input is not a batch of images with pixels.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveMaxPool2d {
    size: [usize; 2],
}

/// Adaptive average pooling along sequences (PyTorch's `AdaptiveAvgPool1d`; Keras's
/// `AdaptiveAveragePooling1D` with `data_format="channels_first"`): output step i is the mean of the input's
/// steps from L i / l, rounded down, to L (i + 1) / l, rounded up.
///
/// Shapes: `[B, C, L]` to `[B, C, l]`. It has no parameters.
///
/// Errors: the size is 0 or above 1,024, the input is not a batch of sequences with channels and steps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveAvgPool1d {
    size: usize,
}

/// Adaptive max pooling along sequences (PyTorch's `AdaptiveMaxPool1d`; Keras's `AdaptiveMaxPooling1D` with
/// `data_format="channels_first"`): output step i is the maximum of the input's steps from L i / l, rounded
/// down, to L (i + 1) / l, rounded up. Equal largest values share the gradient, as in
/// [`MaxPool2d`](super::MaxPool2d).
///
/// Shapes: `[B, C, L]` to `[B, C, l]`. It has no parameters.
///
/// Errors: the size is 0 or above 1,024, the input is not a batch of sequences with channels and steps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveMaxPool1d {
    size: usize,
}

impl AdaptiveAvgPool2d {
    /// Creates a layer whose outputs have this size in pixels.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into().0 }
    }
}

impl AdaptiveMaxPool2d {
    /// Creates a layer whose outputs have this size in pixels.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into().0 }
    }
}

impl AdaptiveAvgPool1d {
    /// Creates a layer whose outputs have this many steps.
    pub fn new(size: usize) -> Self {
        Self { size }
    }
}

impl AdaptiveMaxPool1d {
    /// Creates a layer whose outputs have this many steps.
    pub fn new(size: usize) -> Self {
        Self { size }
    }
}

/// Pools images to a size, if they are images and the size can be.
fn pooled(layer: &str, cx: &Context, x: &Var, size: [usize; 2], pool: fn(&Var, [usize; 2]) -> Var) -> Var {
    let is_image = image(layer, cx, x).is_some();
    if is_image && valid(layer, cx, [sides("size", size)]) { pool(x, size) } else { x.clone() }
}

/// Pools sequences to a number of steps, if they are sequences and the number can be.
fn pooled_row(layer: &str, cx: &Context, x: &Var, size: usize, pool: fn(&Var, [usize; 2]) -> Var) -> Var {
    let is_sequence = sequence(layer, cx, x).is_some();
    let works = is_sequence && valid(layer, cx, [sides("size", [1, size])]);
    if works { from_row(&pool(&as_row(x), [1, size])) } else { x.clone() }
}

/// Computes `$layer`: `$pooled` checks the input and its size, and `$pool` pools it.
macro_rules! adaptive {
    ($layer:ident, $pooled:ident, $pool:ident) => {
        impl Forward for $layer {
            fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                $pooled(self.name(), cx, x, self.size, $pool)
            }
        }
    };
}

adaptive!(AdaptiveAvgPool2d, pooled, adaptive_avg_pool2d);
adaptive!(AdaptiveMaxPool2d, pooled, adaptive_max_pool2d);
adaptive!(AdaptiveAvgPool1d, pooled_row, adaptive_avg_pool2d);
adaptive!(AdaptiveMaxPool1d, pooled_row, adaptive_max_pool2d);
