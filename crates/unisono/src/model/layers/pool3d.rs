//! Pooling of volumes. The layers have no parameters.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::conv3d::volume;
use super::functional::{Window3, avg_pool3d, max_pool3d};
use super::setters::{global_pool, pool_fits, pool_setters};
use super::settings::{valid, window3};
use super::size::Size3;
use crate::model::{Context, Forward, Layer};

/// Max pooling of volumes: the largest value of each window (PyTorch's `MaxPool3d`; Keras's `MaxPooling3D`
/// with `data_format="channels_first"`). Equal largest values share the gradient, as in
/// [`MaxPool2d`](super::MaxPool2d).
///
/// Shapes: `[B, C, D, H, W]` to `[B, C, D', H', W']` with D' = (D + 2 padding - kernel) / stride + 1, rounded
/// down, and H' and W' likewise. It has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of volumes, no window fits into it,
/// or the padding is above half of the kernel size.
#[doc(alias = "MaxPooling3D")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxPool3d {
    window: Window3,
}

/// Average pooling of volumes: the mean of each window, in which the padding does not count (Keras's
/// `AveragePooling3D`; PyTorch's `AvgPool3d` with `count_include_pad=False`).
///
/// Shapes: `[B, C, D, H, W]` to `[B, C, D', H', W']` with D' = (D + 2 padding - kernel) / stride + 1, rounded
/// down, and H' and W' likewise. It has no parameters.
///
/// Errors: the kernel size or the stride is 0, the input is not a batch of volumes, no window fits into it,
/// or the padding is above half of the kernel size.
#[doc(alias = "AveragePooling3D")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AvgPool3d {
    window: Window3,
    border: bool,
}

/// Global average pooling of volumes: the mean of each channel (Keras's `GlobalAveragePooling3D` with
/// `data_format="channels_first"`).
///
/// Shapes: `[B, C, D, H, W]` to `[B, C]`. It has no parameters. Errors: the input is not a batch of volumes.
#[doc(alias = "GlobalAveragePooling3D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalAvgPool3d;

/// Global max pooling of volumes: the largest value of each channel (Keras's `GlobalMaxPooling3D` with
/// `data_format="channels_first"`). Equal largest values share the gradient, as in
/// [`MaxPool2d`](super::MaxPool2d).
///
/// Shapes: `[B, C, D, H, W]` to `[B, C]`. It has no parameters. Errors: the input is not a batch of volumes.
#[doc(alias = "GlobalMaxPooling3D")]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GlobalMaxPool3d;

pool_setters!(MaxPool3d, AvgPool3d, Size3, windows, "voxels", "volume");

fn windows(kernel: impl Into<Size3>) -> Window3 {
    Window3::new(kernel.into().0)
}

/// Returns whether an operand has windows, and reports an error of the layer where it has none.
fn fits(layer: &str, cx: &Context, window: &Window3, x: &Var) -> bool {
    let Some((_, volume)) = volume(layer, cx, x) else { return false };
    if !valid(layer, cx, window3(window)) {
        return false;
    }
    pool_fits(layer, cx, window.count(volume), [window.padding, window.kernel])
}

impl Forward for MaxPool3d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if fits(self.name(), cx, &self.window, x) { max_pool3d(x, &self.window) } else { x.clone() }
    }
}

impl Forward for AvgPool3d {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        if fits(self.name(), cx, &self.window, x) {
            avg_pool3d(x, &self.window, self.border)
        } else {
            x.clone()
        }
    }
}

global_pool!(GlobalAvgPool3d, volume, mean, [-3, -2, -1]);
global_pool!(GlobalMaxPool3d, volume, max, [-3, -2, -1]);
