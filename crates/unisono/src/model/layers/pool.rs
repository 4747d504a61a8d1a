//! Pooling: one value for each window of an image. The layers have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::conv2d::image;
use super::setters::{global_pool, pool_fits, pool_setters};
use super::settings::{self, valid};
use super::size::{Size, WindowData, window};
use crate::model::{Context, Forward, Layer};

/// Max pooling: the largest value of each window (PyTorch's `MaxPool2d`, Keras's `MaxPooling2D`). If several
/// values are the largest, they share the gradient, as in PyTorch's `amax`; PyTorch's layer gives it to the
/// first.
///
/// Shapes: `[B, C, H, W]` to `[B, C, H', W']` with H' = (H + 2 padding - kernel) / stride + 1, rounded down,
/// and W' likewise. It has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of images, no window fits into it, or
/// the padding is above half of the kernel size.
#[doc(alias = "MaxPooling2D")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPool2d {
    #[serde(with = "WindowData")]
    window: Window,
}

/// Average pooling: the mean of each window, in which the padding does not count (Keras's `AveragePooling2D`;
/// PyTorch's `AvgPool2d` with `count_include_pad=False`).
///
/// Shapes: `[B, C, H, W]` to `[B, C, H', W']` with H' = (H + 2 padding - kernel) / stride + 1, rounded down,
/// and W' likewise. It has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of images, no window fits into it, or
/// the padding is above half of the kernel size.
#[doc(alias = "AveragePooling2D")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2d {
    #[serde(with = "WindowData")]
    window: Window,
    border: bool,
}

/// Global average pooling: the mean of each channel (Keras's `GlobalAveragePooling2D`, PyTorch's
/// `AdaptiveAvgPool2d(1)` without its last two axes).
///
/// Shapes: `[B, C, H, W]` to `[B, C]`. It has no parameters.
///
/// Errors: the input is not a batch of images.
#[doc(alias = "GlobalAveragePooling2D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalAvgPool2d;

/// Global max pooling: the largest value of each channel (Keras's `GlobalMaxPooling2D`, PyTorch's
/// `AdaptiveMaxPool2d(1)` without its last two axes). Equal largest values share the gradient, as in
/// [`MaxPool2d`].
///
/// Shapes: `[B, C, H, W]` to `[B, C]`. It has no parameters.
///
/// Errors: the input is not a batch of images.
#[doc(alias = "GlobalMaxPooling2D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalMaxPool2d;

pool_setters!(MaxPool2d, AvgPool2d, Size, window, "pixels", "image");

/// Returns whether an operand has windows, and reports an error of the layer where it has none.
pub(super) fn fits(layer: &str, cx: &Context, window: &Window, x: &Var) -> bool {
    let Some([_, h, w]) = image(layer, cx, x) else { return false };
    if !valid(layer, cx, settings::window(window)) {
        return false;
    }
    pool_fits(layer, cx, window.count([h, w]), [window.padding, window.kernel])
}

impl Forward for MaxPool2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if fits(self.name(), cx, &self.window, x) { x.max_pool2d(&self.window) } else { x.clone() }
    }
}

impl Forward for AvgPool2d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        match (fits(self.name(), cx, &self.window, x), self.border) {
            (false, _) => x.clone(),
            (true, false) => x.avg_pool2d(&self.window),
            (true, true) => x.windows(&self.window, 0.0).mean(&[-2, -1]),
        }
    }
}

global_pool!(GlobalAvgPool2d, image, mean, [-2, -1]);
global_pool!(GlobalMaxPool2d, image, max, [-2, -1]);
